//! The HTTP/1.1 upgrade that a supervisor writes, and the two answers to it.

use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::attach::{AttachProof, AttachRefused, Io, Token};

/// Several times what a supervisor sends.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 32;
const PROTOCOL: &str = "overwinter-supervisor/1";

pub(super) const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\
    Connection: Upgrade\r\n\
    Upgrade: overwinter-supervisor/1\r\n\r\n";

/// What a supervisor says of itself. All of it is a claim until the gateway has checked the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    pub sandbox: SandboxId,
    pub proof: AttachProof,
    /// Of the supervisor; empty where it gave none.
    pub version: String,
}

/// Reads the head of an attach. The deadline is the caller's: dropping this future is safe, the
/// connection is then of no use.
///
/// # Errors
/// [`AttachRefused::Malformed`]: no attach request, too long, or the peer has gone.
pub async fn read_request(io: &mut Box<dyn Io>) -> Result<AttachRequest, AttachRefused> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let room = MAX_HEAD_BYTES - head.len();
        if room == 0 {
            return Err(AttachRefused::Malformed);
        }
        let read = (&mut *io).take(room as u64).read_buf(&mut head).await;
        if read.map_err(|_| AttachRefused::Malformed)? == 0 {
            return Err(AttachRefused::Malformed);
        }
        // Its end can only lie in what is new or three bytes before; heads are short enough to
        // look at all of it.
        if let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") {
            // The supervisor is the server of what follows and waits for the 101 first.
            return if end + 4 == head.len() {
                parse(&head)
            } else {
                Err(AttachRefused::Malformed)
            };
        }
    }
}

fn parse(head: &[u8]) -> Result<AttachRequest, AttachRefused> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(_) => return Err(AttachRefused::Malformed),
    }
    let required = |name| header(&request, name)?.ok_or(AttachRefused::Malformed);
    if request.method != Some("POST")
        || request.path != Some("/attach")
        || !required("upgrade")?.eq_ignore_ascii_case(PROTOCOL)
    {
        return Err(AttachRefused::Malformed);
    }
    let token = required("authorization")?
        .strip_prefix("Bearer ")
        .filter(|token| !token.is_empty())
        .ok_or(AttachRefused::Malformed)?;
    let incarnation = required("overwinter-incarnation")?
        .parse()
        .map_err(|_| AttachRefused::Malformed)?;
    let previous_secret = match header(&request, "overwinter-previous-secret")? {
        Some(text) => Some(secret(text)?),
        None => None,
    };
    Ok(AttachRequest {
        sandbox: required("overwinter-sandbox")?
            .parse::<SandboxId>()
            .map_err(|_| AttachRefused::Malformed)?,
        proof: AttachProof {
            incarnation: Incarnation(incarnation),
            token: Token(token.to_owned()),
            secret: secret(required("overwinter-secret")?)?,
            previous_secret,
        },
        version: header(&request, "overwinter-version")?
            .unwrap_or_default()
            .to_owned(),
    })
}

/// At most one of each: two that differ would be read differently by two readers.
fn header<'a>(
    request: &httparse::Request<'_, 'a>,
    name: &str,
) -> Result<Option<&'a str>, AttachRefused> {
    let mut found = request
        .headers
        .iter()
        .filter(|it| it.name.eq_ignore_ascii_case(name));
    let first = found.next();
    if found.next().is_some() {
        return Err(AttachRefused::Malformed);
    }
    first
        .map(|it| std::str::from_utf8(it.value).map_err(|_| AttachRefused::Malformed))
        .transpose()
}

fn secret(text: &str) -> Result<[u8; 32], AttachRefused> {
    let digits: &[u8; 64] = text
        .as_bytes()
        .try_into()
        .map_err(|_| AttachRefused::Malformed)?;
    let mut secret = [0; 32];
    for (byte, pair) in secret.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |it: u8| char::from(it).to_digit(16).ok_or(AttachRefused::Malformed);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(secret)
}

/// Answers with a status and closes. Whether the peer hears it is the peer's matter.
pub async fn refuse(mut io: Box<dyn Io>, why: AttachRefused) {
    let (status, reason) = answer(why);
    let body = format!("{{\"reason\":\"{reason}\"}}\n");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len(),
    );
    if io.write_all(answer.as_bytes()).await.is_ok() {
        let _ = io.shutdown().await;
    }
}

/// The peer learns no more than its status and one word.
const fn answer(why: AttachRefused) -> (&'static str, &'static str) {
    match why {
        AttachRefused::WrongToken => ("401 Unauthorized", "WRONG_TOKEN"),
        AttachRefused::Malformed => ("403 Forbidden", "MALFORMED"),
        AttachRefused::NoSuchSandbox => ("403 Forbidden", "NO_SUCH_SANDBOX"),
        AttachRefused::WrongPreviousSecret => ("403 Forbidden", "WRONG_PREVIOUS_SECRET"),
        AttachRefused::Revoked => ("409 Conflict", "REVOKED"),
        AttachRefused::TokenUsed => ("409 Conflict", "TOKEN_USED"),
    }
}
