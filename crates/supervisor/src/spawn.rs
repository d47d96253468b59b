//! Starting a program: everything is prepared before the fork, the child only makes system calls,
//! and what fails in it is reported through a pipe that a successful exec closes.
//!
//! A plain fork, not one that shares memory: between becoming the user and the exec the child is
//! the user's, and must hold nothing that the supervisor goes on using. The supervisor is a few
//! pages large, so the copy costs a fraction of a millisecond.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_char, c_int, c_void};

use crate::credentials::{Own, become_user};
use crate::error::Refusal;
use crate::pty;
use crate::users::User;

/// What a process gets when its environment names no PATH.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How much easier a victim of the kernel's out-of-memory killer a workload is than PID 1.
const OOM_SCORE_ABOVE_OWN: i32 = 100;

/// What is to be run, checked.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Empty: the workspace, or `/` where there is none.
    pub workdir: String,
    /// Rows and columns of a terminal.
    pub tty: Option<(u32, u32)>,
    pub stdin: bool,
}

/// A child between fork and exec, with the supervisor's ends of its streams, all non-blocking.
pub(crate) struct Child {
    pub pid: i32,
    pub stdin: Option<OwnedFd>,
    /// The terminal's master, when it has one; then there is no stderr.
    pub stdout: OwnedFd,
    pub stderr: Option<OwnedFd>,
    /// Yields a [`StartFailure`], or end-of-file once the program runs.
    pub status: OwnedFd,
}

/// How far a child came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    Terminal = 1,
    User = 2,
    Workdir = 3,
    Exec = 4,
}

/// Why a child did not become the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartFailure {
    pub stage: Stage,
    pub errno: i32,
}

/// Bytes of an encoded [`StartFailure`].
pub(crate) const FAILURE_BYTES: usize = 8;

impl StartFailure {
    /// From what the child wrote; `None` when it wrote nothing, which means success.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let stage = i32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
        let errno = i32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?);
        let stage = [Stage::Terminal, Stage::User, Stage::Workdir, Stage::Exec]
            .into_iter()
            .find(|known| *known as i32 == stage)?;
        Some(Self { stage, errno })
    }

    /// As a shell has it: 127 for a program that is not there, else 126.
    pub(crate) fn exit_code(&self) -> i32 {
        match self.stage {
            Stage::Exec if matches!(self.errno, libc::ENOENT | libc::ENOTDIR) => 127,
            Stage::Terminal | Stage::User | Stage::Workdir | Stage::Exec => 126,
        }
    }

    /// What a user reads.
    pub(crate) fn message(&self, program: &Program) -> String {
        let why = io::Error::from_raw_os_error(self.errno);
        let name = program.command.first().map_or("", String::as_str);
        match self.stage {
            Stage::Terminal => format!("cannot set up the terminal: {why}"),
            Stage::User => format!("cannot become the requested user: {why}"),
            Stage::Workdir => format!("working folder {}: {why}", program.workdir),
            Stage::Exec if self.exit_code() == 127 => {
                format!("{name}: program not found, or its interpreter is missing")
            }
            Stage::Exec => format!("{name}: cannot be executed: {why}"),
        }
    }
}

/// Everything that the child needs, in the form that system calls take.
struct Prepared {
    candidates: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    workdirs: Vec<CString>,
    oom_score_adj: CString,
    _strings: Vec<CString>,
}

/// Forks `program` as `user`. Runs in microseconds and never waits for the child.
pub(crate) fn spawn(
    own: &Own,
    user: &User,
    program: &Program,
    default_workdir: &str,
) -> Result<Child, Refusal> {
    let prepared = prepare(user, program, default_workdir)?;
    let (status_read, status_write) = pipe().map_err(Refusal::Spawn)?;
    nonblocking(&status_read).map_err(Refusal::Spawn)?;
    let streams = Streams::open(user, program).map_err(Refusal::Spawn)?;
    let child_ends = streams.child;
    let [stdin, stdout, stderr] = child_ends.each_ref().map(AsRawFd::as_raw_fd);
    let status = status_write.as_raw_fd();
    // SAFETY: a fork by the bare system call. The child makes only system calls on prepared
    // memory and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        0 => run_child(
            own,
            user,
            program,
            &prepared,
            [stdin, stdout, stderr],
            status,
        ),
        pid if pid < 0 => Err(Refusal::Spawn(io::Error::last_os_error())),
        pid => Ok(Child {
            pid: pid as i32,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            status: status_read,
        }),
    }
}

/// The standard streams of a child: the supervisor's ends, non-blocking, and the child's.
struct Streams {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    child: [OwnedFd; 3],
}

impl Streams {
    fn open(user: &User, program: &Program) -> io::Result<Self> {
        if let Some((rows, columns)) = program.tty {
            let pty = pty::open(rows, columns, user.uid)?;
            return Ok(Self {
                stdin: Some(pty.master.try_clone()?),
                stdout: pty.master,
                stderr: None,
                child: [pty.slave.try_clone()?, pty.slave.try_clone()?, pty.slave],
            });
        }
        let (child_stdin, stdin) = if program.stdin {
            let (read, write) = pipe()?;
            nonblocking(&write)?;
            (read, Some(write))
        } else {
            (null_input()?, None)
        };
        let (stdout, child_stdout) = pipe()?;
        let (stderr, child_stderr) = pipe()?;
        nonblocking(&stdout)?;
        nonblocking(&stderr)?;
        Ok(Self {
            stdin,
            stdout,
            stderr: Some(stderr),
            child: [child_stdin, child_stdout, child_stderr],
        })
    }
}

fn prepare(user: &User, program: &Program, default_workdir: &str) -> Result<Prepared, Refusal> {
    let Some(name) = program.command.first().filter(|name| !name.is_empty()) else {
        return Err(Refusal::Invalid("the command is empty".into()));
    };
    let text = |what: &str, value: &str| {
        CString::new(value).map_err(|_| Refusal::Invalid(format!("{what} contains a NUL byte")))
    };
    let mut env: BTreeMap<&str, &str> =
        BTreeMap::from([("PATH", DEFAULT_PATH), ("HOME", user.home.as_str())]);
    if let Some(name) = &user.name {
        env.insert("USER", name);
    }
    if program.tty.is_some() {
        env.insert("TERM", "xterm");
    }
    for (key, value) in &program.env {
        if key.is_empty() || key.contains('=') {
            return Err(Refusal::Invalid(format!("environment name {key:?}")));
        }
        env.insert(key, value);
    }
    let candidates = if name.contains('/') {
        vec![text("the command", name)?]
    } else {
        env.get("PATH")
            .copied()
            .unwrap_or(DEFAULT_PATH)
            .split(':')
            .map(|folder| match folder {
                "" => text("PATH", &format!("./{name}")),
                folder => text("PATH", &format!("{folder}/{name}")),
            })
            .collect::<Result<_, _>>()?
    };
    let workdirs = match program.workdir.as_str() {
        "" => vec![text("the workspace", default_workdir)?, c"/".to_owned()],
        workdir => vec![text("the working folder", workdir)?],
    };
    let arguments = program
        .command
        .iter()
        .map(|argument| text("an argument", argument))
        .collect::<Result<Vec<_>, _>>()?;
    let variables = env
        .iter()
        .map(|(key, value)| text("an environment variable", &format!("{key}={value}")))
        .collect::<Result<Vec<_>, _>>()?;
    let pointers = |strings: &[CString]| {
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([std::ptr::null()])
            .collect::<Vec<_>>()
    };
    Ok(Prepared {
        candidates,
        argv: pointers(&arguments),
        envp: pointers(&variables),
        workdirs,
        oom_score_adj: text("a number", &oom_score_of_children().to_string())?,
        _strings: arguments.into_iter().chain(variables).collect(),
    })
}

/// Without /proc it stays at the kernel's default for both.
fn oom_score_of_children() -> i32 {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj")
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
        .unwrap_or(0);
    (own + OOM_SCORE_ABOVE_OWN).min(1000)
}

/// The child's way to the program. Only system calls: no allocation, no lock, no return.
fn run_child(
    own: &Own,
    user: &User,
    program: &Program,
    prepared: &Prepared,
    stdio: [RawFd; 3],
    status: RawFd,
) -> ! {
    let fail = |stage: Stage, errno: c_int, status: RawFd| -> ! {
        let mut report = [0u8; FAILURE_BYTES];
        report[..4].copy_from_slice(&(stage as i32).to_ne_bytes());
        report[4..].copy_from_slice(&errno.to_ne_bytes());
        let code = StartFailure { stage, errno }.exit_code();
        // SAFETY: writes a local buffer and ends this process.
        unsafe {
            libc::write(status, report.as_ptr().cast::<c_void>(), report.len());
            libc::_exit(code)
        }
    };
    let errno = || {
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    };
    // SAFETY: system calls on descriptors and prepared, NUL-terminated memory only.
    unsafe {
        libc::setsid();
        reset_signals();
        raise_oom_score(&prepared.oom_score_adj);

        // Past the three standard ones first, so that none is overwritten before it is copied.
        let mut moved = [0; 4];
        for (slot, fd) in moved.iter_mut().zip([stdio[0], stdio[1], stdio[2], status]) {
            *slot = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 4);
            if *slot < 0 {
                fail(Stage::Terminal, errno(), status);
            }
        }
        for (target, fd) in moved.iter().enumerate() {
            let flags = if target == 3 { libc::O_CLOEXEC } else { 0 };
            if libc::dup3(*fd, target as c_int, flags) < 0 {
                fail(Stage::Terminal, errno(), moved[3]);
            }
        }
        let status = 3;
        // A runtime without this call closes them at the exec: each is opened close-on-exec.
        libc::syscall(libc::SYS_close_range, 4, u32::MAX, 0);
        if program.tty.is_some() && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            fail(Stage::Terminal, errno(), status);
        }
        libc::umask(0o022);
        own.restore_open_files();
        if let Err(error) = become_user(own, user) {
            fail(
                Stage::User,
                error.raw_os_error().unwrap_or(libc::EPERM),
                status,
            );
        }
        // Changing ids may make a process dumpable (fs.suid_dumpable); the memory is a copy of
        // the supervisor's until the exec.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        let mut entered = false;
        for workdir in &prepared.workdirs {
            entered = libc::chdir(workdir.as_ptr()) == 0;
            if entered {
                break;
            }
        }
        if !entered {
            fail(Stage::Workdir, errno(), status);
        }
        let mut unblocked: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut unblocked);
        libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const unblocked,
            std::ptr::null_mut(),
        );

        let mut worst = libc::ENOENT;
        for candidate in &prepared.candidates {
            libc::execve(
                candidate.as_ptr(),
                prepared.argv.as_ptr(),
                prepared.envp.as_ptr(),
            );
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                // As a shell does it: go on looking, and say this if nothing better comes.
                libc::EACCES => worst = libc::EACCES,
                other => fail(Stage::Exec, other, status),
            }
        }
        fail(Stage::Exec, worst, status)
    }
}

/// Every signal to its default action: an ignored one would stay ignored across the exec.
unsafe fn reset_signals() {
    // The kernel's own record: handler, flags, restorer and mask, all zero for SIG_DFL. By the
    // bare call, because libc's refuses the two numbers that it keeps for itself.
    let default = [0u64; 4];
    // SAFETY: a record of the kernel's size; the numbers that cannot be set fail.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            );
        }
    }
}

/// Best effort: without /proc, or unprivileged, it stays as it is.
unsafe fn raise_oom_score(score: &CString) {
    // SAFETY: system calls on NUL-terminated memory.
    unsafe {
        let fd = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if fd >= 0 {
            libc::write(fd, score.as_ptr().cast::<c_void>(), score.as_bytes().len());
            libc::close(fd);
        }
    }
}

/// A close-on-exec pipe, (read, write).
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the call fills two descriptors, which are new and ours.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// `/dev/null` for reading; in a root without one, a pipe that nobody writes to reads the same.
fn null_input() -> io::Result<OwnedFd> {
    match std::fs::File::open("/dev/null") {
        Ok(file) => Ok(file.into()),
        Err(_) => pipe().map(|(read, _write)| read),
    }
}

fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: flags of a valid descriptor.
    unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
