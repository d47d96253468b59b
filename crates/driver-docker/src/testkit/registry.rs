//! A registry of a test's own: Debian's `docker-registry` on a loopback port, with one user. Its images are
//! in its folder; ended by its process id when dropped.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::query_parameters::{PushImageOptionsBuilder, TagImageOptionsBuilder};
use futures::TryStreamExt;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;

const PROGRAM: &str = "/usr/bin/docker-registry";
const PATIENCE: Duration = Duration::from_secs(30);
/// Its one user.
pub const USER: &str = "winter";
/// With characters that base64's two alphabets write differently, at each place of three.
pub const PASSWORD: &str = "what? ever>ends~>?~>??";
/// The same for the registry, by bcrypt, the one way that it reads.
const HASH: &str = "$2y$05$abcdefghijklmnopqrstuu6Jt7JCfuyWCLQMsLOMfdGcaWtLcLskS";

/// Why tests with a registry cannot run here; None: they can.
#[must_use]
pub fn no_registry() -> Option<&'static str> {
    let there = Path::new(PROGRAM).exists();
    (!there).then_some("needs docker-registry (Debian: docker-registry)")
}

/// A registry that runs, or did.
pub struct Registry {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Registry {
    /// Starts one that keeps its images in `folder`.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let mut registry = Self {
            folder: folder.to_owned(),
            port: 0,
            child: None,
        };
        fs::create_dir_all(folder)?;
        fs::write(folder.join("htpasswd"), format!("{USER}:{HASH}\n"))?;
        registry.start_again()?;
        Ok(registry)
    }

    /// At the port that it had.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_again(&mut self) -> io::Result<()> {
        let at = |name: &str| self.folder.join(name);
        let config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage:\n  filesystem: {{rootdirectory: {:?}}}\n\
             http: {{addr: \"127.0.0.1:{}\"}}\nauth:\n  htpasswd: {{realm: test, path: {:?}}}\n",
            at("data"),
            self.port,
            at("htpasswd")
        );
        fs::write(at("config.yml"), config)?;
        let mut command = Command::new(PROGRAM);
        command
            .arg("serve")
            .arg(at("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: one system call, which a child may make before it becomes another program.
        unsafe {
            command.pre_exec(|| {
                set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from)
            });
        }
        let mut child = command.spawn()?;
        let log = child.stderr.take();
        self.child = Some(child);
        let (found, port) = mpsc::channel();
        // Read to its end: a registry whose log nobody reads stands still.
        std::thread::spawn(move || {
            for line in BufReader::new(log?).lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                    let digits = rest.chars().take_while(char::is_ascii_digit);
                    let _ = found.send(digits.collect::<String>().parse());
                }
            }
            Some(())
        });
        let port = port.recv_timeout(PATIENCE).map_err(io::Error::other)?;
        self.port = port.map_err(io::Error::other)?;
        Ok(())
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How an image of it is named.
    #[must_use]
    pub fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    /// What `docker login` writes for it, with this password.
    #[must_use]
    pub fn login(&self, password: &str) -> String {
        use base64::Engine as _;
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{password}"));
        format!(
            "{{\"auths\": {{\"127.0.0.1:{}\": {{\"auth\": \"{auth}\"}}}}}}",
            self.port
        )
    }

    /// Puts an image that `daemon` has into it under `name` (`image:tag`).
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn push(&self, daemon: &Docker, image: &str, name: &str) -> io::Result<()> {
        let full = self.name(name);
        let (repo, tag) = full.rsplit_once(':').unwrap_or((&full, "latest"));
        let as_new = TagImageOptionsBuilder::default().repo(repo).tag(tag);
        let tagged = daemon.tag_image(image, Some(as_new.build())).await;
        tagged.map_err(io::Error::other)?;
        let credentials = DockerCredentials {
            username: Some(USER.to_owned()),
            password: Some(PASSWORD.to_owned()),
            ..DockerCredentials::default()
        };
        let options = PushImageOptionsBuilder::default().tag(tag).build();
        let daemon = daemon
            .clone()
            .with_request_modifier(crate::engine::url_safe);
        let steps = daemon.push_image(repo, Some(options), Some(credentials));
        let steps: Result<Vec<_>, _> = steps.try_collect().await;
        steps.map(|_| ()).map_err(io::Error::other)
    }

    /// Ends it; what it has stays.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn end(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.end();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
