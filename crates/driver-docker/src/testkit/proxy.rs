//! What can become of a request on its way to a daemon: a proxy before its socket, which counts what goes
//! through and does to one request what a test has asked for. Whatever waits here is bounded.
//!
//! The driver gives each request a connection of its own, so one connection is one request.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// For what a test waits for, and for a request that it forgot to let go.
const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: &str = "GET /events";
/// A request is a head and some kilobytes of JSON.
const LONGEST_HEAD: usize = 64 * 1024;

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its connection ends at once; the daemon gets it when it is let go.
    Late,
    /// Its sender waits for the answer; the daemon gets it when it is let go.
    Held,
    /// Carried out; the answer never comes.
    ReplyLost,
    /// Carried out; the answer ends in the middle of its head.
    ReplyCut,
    /// Answered with this status; the daemon never gets it.
    Refused(u16),
    /// Carried out twice, one after the other; its sender has the first answer.
    Twice,
    /// Carried out; in the answer the first words are replaced by the second, which are no longer.
    Reworded(&'static str, &'static str),
}

/// A request that a fault waits for.
#[derive(Debug)]
pub struct Met {
    taken: Option<oneshot::Receiver<()>>,
    go: Option<oneshot::Sender<()>>,
    over: oneshot::Receiver<Option<u16>>,
}

impl Met {
    /// Until the request has come.
    ///
    /// # Errors
    /// When it does not.
    pub async fn taken(&mut self) -> io::Result<()> {
        match self.taken.take() {
            Some(taken) => bounded(taken).await,
            None => Ok(()),
        }
    }

    /// Gives it to the daemon now, and waits for the status that the daemon answers with.
    ///
    /// # Errors
    /// When it has not come, or is not answered.
    pub async fn let_go(mut self) -> io::Result<Option<u16>> {
        self.taken().await?;
        if let Some(go) = self.go.take() {
            let _ = go.send(());
        }
        self.over().await
    }

    /// Until the fault is over. None: the daemon has answered nothing.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn over(self) -> io::Result<Option<u16>> {
        bounded(self.over).await
    }
}

async fn bounded<T>(waited: oneshot::Receiver<T>) -> io::Result<T> {
    let waited = tokio::time::timeout(PATIENCE, waited).await;
    waited
        .map_err(|_| io::Error::other("no such request came in time"))?
        .map_err(|_| io::Error::other("the request came to nothing"))
}

/// Ended when dropped; connections that are open then go on.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

/// What becomes of the daemon's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    Pass,
    /// They come later: all once they pass again.
    Wait,
    /// The streams end, and no other begins.
    End,
}

#[derive(Debug)]
struct Seen {
    daemon: PathBuf,
    events: watch::Sender<Events>,
    requests: Mutex<Vec<String>>,
    faults: Mutex<Vec<Armed>>,
}

#[derive(Debug)]
struct Armed {
    request: String,
    fault: Fault,
    taken: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
    over: oneshot::Sender<Option<u16>>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Proxy {
    /// Listens at `socket` for the daemon at `daemon`. Within a runtime.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start(socket: &Path, daemon: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let seen = Arc::new(Seen {
            daemon: daemon.to_owned(),
            events: watch::Sender::new(Events::Pass),
            requests: Mutex::default(),
            faults: Mutex::default(),
        });
        let shared = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let seen = Arc::clone(&shared);
                // Of a connection that breaks, both ends know.
                tokio::spawn(async move { serve(&seen, client).await.ok() });
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            seen,
            accepting,
        })
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is to become of the next request of this kind, like `POST /containers/*/start`.
    #[must_use]
    pub fn next(&self, request: &str, fault: Fault) -> Met {
        let (taken, is_taken) = oneshot::channel();
        let (may_go, go) = oneshot::channel();
        let (over, is_over) = oneshot::channel();
        lock(&self.seen.faults).push(Armed {
            request: request.to_owned(),
            fault,
            taken,
            go,
            over,
        });
        Met {
            taken: Some(is_taken),
            go: Some(may_go),
            over: is_over,
        }
    }

    /// What becomes of the daemon's events from now on.
    pub fn events(&self, events: Events) {
        self.seen.events.send_replace(events);
    }

    /// The requests since the last time that this was asked, without versions, names and options.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.seen.requests))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(seen: &Seen, mut client: UnixStream) -> io::Result<()> {
    let mut bytes = Vec::new();
    let head = read_head(&mut client, &mut bytes).await?;
    let kind = kind(&bytes);
    lock(&seen.requests).push(kind.clone());
    let armed = {
        let mut faults = lock(&seen.faults);
        let position = faults.iter().position(|it| it.request == kind);
        position.map(|position| faults.remove(position))
    };
    let Some(armed) = armed else {
        let mut daemon = UnixStream::connect(&seen.daemon).await?;
        daemon.write_all(&bytes).await?;
        return if kind == EVENTS {
            pass_events(seen, client, daemon).await
        } else {
            copy_bidirectional(&mut client, &mut daemon).await.map(drop)
        };
    };
    let whole = head + content_length(&bytes);
    while bytes.len() < whole && client.read_buf(&mut bytes).await? > 0 {}
    let _ = armed.taken.send(());
    let wait = async {
        let _ = tokio::time::timeout(PATIENCE, armed.go).await;
    };
    let status = match armed.fault {
        Fault::Late => {
            drop(client);
            wait.await;
            status(&ask(seen, &bytes).await?)
        }
        Fault::Held => {
            wait.await;
            let answer = ask(seen, &bytes).await?;
            client.write_all(&answer).await?;
            status(&answer)
        }
        Fault::ReplyLost => status(&ask(seen, &bytes).await?),
        Fault::ReplyCut => {
            let answer = ask(seen, &bytes).await?;
            client.write_all(&answer[..answer.len().min(20)]).await?;
            status(&answer)
        }
        Fault::Refused(status) => {
            let body = "{\"message\":\"refused on its way\"}";
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            client.write_all(answer.as_bytes()).await?;
            None
        }
        Fault::Reworded(from, to) => {
            let answer = reworded(&ask(seen, &bytes).await?, from, to);
            client.write_all(&answer).await?;
            status(&answer)
        }
        Fault::Twice => {
            let first = ask(seen, &bytes).await?;
            let again = ask(seen, &bytes).await?;
            client.write_all(&first).await?;
            status(&again)
        }
    };
    let _ = armed.over.send(status);
    Ok(())
}

/// Until it is ended.
async fn pass_events(seen: &Seen, client: UnixStream, mut daemon: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = client.into_split();
    let passing = async {
        let mut events = seen.events.subscribe();
        let mut bytes = Vec::new();
        while daemon.read_buf(&mut bytes).await? > 0 {
            let open = events.wait_for(|events| *events == Events::Pass).await;
            drop(open.map_err(io::Error::other)?);
            writer.write_all(&bytes).await?;
            bytes.clear();
        }
        Ok(())
    };
    let mut events = seen.events.subscribe();
    tokio::select! {
        passed = passing => passed,
        gone = reader.read_u8() => gone.map(drop),
        ended = events.wait_for(|events| *events == Events::End) => {
            ended.map(drop).map_err(io::Error::other)
        }
    }
}

/// So that its length stays.
fn reworded(message: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(message);
    let padding = " ".repeat(from.len().saturating_sub(to.len()));
    text.replacen(from, &format!("{to}{padding}"), 1)
        .into_bytes()
}

/// The daemon's whole answer.
async fn ask(seen: &Seen, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut daemon = UnixStream::connect(&seen.daemon).await?;
    daemon.write_all(request).await?;
    let mut answer = Vec::new();
    let head = read_head(&mut daemon, &mut answer).await?;
    let whole = head + content_length(&answer);
    let head = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let chunked = head.contains("transfer-encoding: chunked");
    while answer.len() < whole || chunked && !answer.ends_with(b"\r\n0\r\n\r\n") {
        if daemon.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    Ok(answer)
}

/// Reads until there is a head, and tells how long it is.
async fn read_head(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            return Ok(end + 4);
        }
        if bytes.len() > LONGEST_HEAD || stream.read_buf(bytes).await? == 0 {
            return Err(io::Error::other("no head of a message"));
        }
    }
}

fn content_length(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("content-length:"));
    line.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

fn status(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer);
    text.split(' ').nth(1)?.parse().ok()
}

/// Method and path; what names one thing of many is a `*`.
fn kind(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next());
    let path = target.unwrap_or_default().split('?').next();
    let parts = path.unwrap_or_default().split('/').filter(|it| {
        let versioned = it.strip_prefix('v').unwrap_or_default();
        !it.is_empty() && !versioned.starts_with(|it: char| it.is_ascii_digit())
    });
    let parts: Vec<_> = parts.collect();
    let last = parts.len().saturating_sub(1);
    let named =
        |(at, part): (usize, &&str)| if at > 0 && at < last { "*" } else { *part }.to_owned();
    let path: Vec<_> = parts.iter().enumerate().map(named).collect();
    // A removal ends with the name.
    let path = match (method, path.as_slice()) {
        ("DELETE", [kind, _]) => format!("{kind}/*"),
        _ => path.join("/"),
    };
    format!("{method} /{path}")
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn a_request_is_known_by_what_it_asks_for() {
        for (line, expected) in [
            (
                "POST /v1.41/containers/abc/start HTTP/1.1",
                "POST /containers/*/start",
            ),
            (
                "GET /v1.41/containers/a-b/json?size=false HTTP/1.1",
                "GET /containers/*/json",
            ),
            (
                "DELETE /v1.41/containers/abc?force=true HTTP/1.1",
                "DELETE /containers/*",
            ),
            (
                "GET /v1.41/containers/json?all=true HTTP/1.1",
                "GET /containers/json",
            ),
            ("GET /events?since=1 HTTP/1.1", "GET /events"),
            (
                "POST /v1.41/containers/create?name=x HTTP/1.1",
                "POST /containers/create",
            ),
        ] {
            assert_eq!(kind(line.as_bytes()), expected);
        }
    }
}
