//! A peer on the socket that a driver has made for one sandbox's supervisor.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use overwinter_client::Sandbox;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::Uid;
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::stage::Stage;

/// PID 1's, inside, which a workload is not given.
pub(crate) const SUPERVISOR: u32 = 65_535;

/// Everything that the supervisor of one sandbox is told, as a thief has it.
#[derive(Clone, Debug)]
pub(crate) struct Stolen {
    pub(crate) folder: std::path::PathBuf,
    /// The first of the sandbox's user ids, as the host numbers them.
    pub(crate) base: u32,
    pub(crate) sandbox: String,
    pub(crate) incarnation: u64,
    pub(crate) token: String,
}

impl Stolen {
    pub(crate) fn from(stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let folder = stage.attach_folder(sandbox)?;
        let file = folder.join("attach");
        let owner = std::fs::metadata(&file)?.uid();
        let told: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        let text = |key: &str| Some(told.get(key)?.as_str()?.to_owned());
        Ok(Self {
            folder,
            base: owner - SUPERVISOR,
            sandbox: text("sandbox_id").context("no sandbox")?,
            incarnation: told["incarnation"].as_u64().context("no incarnation")?,
            token: text("token").context("no token")?,
        })
    }

    /// Waits until they are where the supervisor finds them, and the socket too.
    pub(crate) async fn awaited(stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<Self> {
        let folder = stage.attach_folder(sandbox)?;
        let made = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives.
        let made = unsafe { AsyncFd::register_with_interest(made, Interest::READABLE) }?;
        loop {
            // From above: what is made after a folder was looked into is told.
            let above: Vec<_> = folder.ancestors().take(3).collect();
            for folder in above.into_iter().rev() {
                let what = WatchFlags::CREATE | WatchFlags::MOVED_TO;
                match inotify::add_watch(&made, folder, what) {
                    Ok(_) => {}
                    Err(Errno::NOENT) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            if let Ok(stolen) = Self::from(stage, sandbox)
                && folder.join("gateway.sock").exists()
            {
                return Ok(stolen);
            }
            let mut ready = made.readable().await?;
            // Whatever it was, all of it is looked at again.
            while rustix::io::read(&made, &mut [0; 4096][..]).is_ok() {}
            ready.clear_ready();
        }
    }

    /// The head of an attach with these credentials and a secret of the peer's own.
    pub(crate) fn head(&self, secret: &str) -> String {
        format!(
            "POST /attach HTTP/1.1\r\nHost: overwinter\r\nConnection: Upgrade\r\n\
             Upgrade: overwinter-supervisor/1\r\nContent-Length: 0\r\n\
             Authorization: Bearer {}\r\nOverwinter-Secret: {secret}\r\n\
             Overwinter-Sandbox: {}\r\nOverwinter-Incarnation: {}\r\n\r\n",
            self.token, self.sandbox, self.incarnation
        )
    }

    /// A connection as a user of the sandbox, by its number inside.
    pub(crate) fn dial(&self, user: u32) -> std::io::Result<UnixStream> {
        dial(&self.folder, Some(self.base + user))
    }
}

/// A connection as a user of the host, root where none is given.
pub(crate) fn dial(folder: &Path, user: Option<u32>) -> std::io::Result<UnixStream> {
    // The folders above are closed to everybody but root; inside they are mounted.
    let folder = openat(
        CWD,
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let address = format!("/proc/self/fd/{}/gateway.sock", folder.as_raw_fd());
    let Some(user) = user else {
        return UnixStream::connect(address);
    };
    // On a thread of its own: who dials is asked of the thread.
    std::thread::scope(|scope| {
        let dialling = scope.spawn(|| {
            let (root, user) = (Uid::ROOT, Uid::from_raw(user));
            rustix::thread::set_thread_res_uid(root, user, root)?;
            UnixStream::connect(&address)
        });
        dialling
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the thread that dials has panicked")))
    })
}

/// How a conversation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The first line's status and the reason in the body; the connection was closed.
    Refused(u16, String),
    /// Closed without a word.
    Closed,
    /// Nothing came in time.
    Nothing,
    /// 101: it was let in.
    LetIn,
}

/// Says what it has to say, and listens until the other end closes or `time` is over.
pub(crate) fn talk(mut stream: UnixStream, said: &[u8], time: Duration) -> Answer {
    let deadline = Instant::now() + time;
    let _ = stream.set_write_timeout(Some(time));
    // Closed while it still talks: what was answered before is there to be read.
    let _ = stream.write_all(said);
    let mut heard = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Answer::Nothing;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(read) if read > 0 => {
                heard.extend_from_slice(&piece[..read]);
                if heard.starts_with(b"HTTP/1.1 101") {
                    return Answer::LetIn;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Answer::Nothing,
            Ok(_) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&heard);
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = text.rsplit("\r\n\r\n").next().unwrap_or_default();
    let reason = serde_json::from_str::<Value>(body).unwrap_or_default();
    match status {
        Some(status) => Answer::Refused(
            status,
            reason["reason"].as_str().unwrap_or_default().to_owned(),
        ),
        None => Answer::Closed,
    }
}
