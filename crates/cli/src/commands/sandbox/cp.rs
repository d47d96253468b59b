//! `overwinter sandbox cp`: one file, in or out.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use clap::Args;
use overwinter_client::{Code, FileReader, Files, raw};
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;
use crate::failure::Failure;
use crate::progress;
use crate::signals::Signals;

const PIECE: usize = 1 << 20;
/// How far our disk and the connection may be apart, in pieces.
const AHEAD: usize = 4;
const PERMISSIONS: u32 = 0o777;

#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// What is copied: a file here, - (stdin), or NAME:/path in a sandbox
    source: OsString,
    /// Where to: a file or folder here, - (stdout), or NAME:/path in a sandbox; a folder is one that
    /// exists, or ends with /
    destination: OsString,
    /// As whom, in the sandbox
    #[arg(short, long)]
    user: Option<String>,
    /// Make the folders above the destination, in the sandbox
    #[arg(short, long)]
    parents: bool,
    /// On disk, in the sandbox, before it ends
    #[arg(long)]
    sync: bool,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Stdio,
    Here(PathBuf),
    /// An empty name means the only sandbox there is.
    Inside {
        name: String,
        path: Vec<u8>,
    },
}

impl Side {
    /// `NAME:path` where no slash comes before the colon, so that `./a:b` is a file here.
    fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Self::Stdio;
        }
        let inside = bytes
            .iter()
            .position(|&b| b == b':' || b == b'/')
            .filter(|&at| bytes[at] == b':')
            .and_then(|at| {
                let name = std::str::from_utf8(&bytes[..at]).ok()?;
                Some((name.to_owned(), bytes[at + 1..].to_vec()))
            });
        match inside {
            Some((name, path)) => Self::Inside { name, path },
            None => Self::Here(PathBuf::from(text)),
        }
    }
}

pub(crate) async fn run(context: &Context, args: Cp) -> Result<u8, Failure> {
    let source = Side::parse(&args.source);
    let destination = Side::parse(&args.destination);
    let files = async |name: String| {
        let sandbox = context
            .sandbox(Some(name).filter(|it| !it.is_empty()))
            .await?;
        let files = context.client.files(sandbox);
        Ok::<_, Failure>(match &args.user {
            Some(user) => files.user(user),
            None => files,
        })
    };
    match (source, destination) {
        (Side::Inside { name, path }, here @ (Side::Stdio | Side::Here(_))) => {
            download(&files(name).await?, path, here).await?;
        }
        (here @ (Side::Stdio | Side::Here(_)), Side::Inside { name, path }) => {
            upload(&files(name).await?, here, path, &args).await?;
        }
        (Side::Inside { .. }, Side::Inside { .. })
        | (Side::Stdio | Side::Here(_), Side::Stdio | Side::Here(_)) => {
            return Err(Failure::CopyBetween);
        }
    }
    Ok(0)
}

async fn upload(files: &Files, from: Side, to: Vec<u8>, args: &Cp) -> Result<(), Failure> {
    let (mut file, name, size, mode) = match from {
        Side::Here(path) => {
            let shown = path.display().to_string();
            let failed = |error| Failure::local(shown.clone(), error);
            let file = File::open(&path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            if metadata.is_dir() {
                return Err(Failure::CopyFolder(shown));
            }
            let mode = metadata.permissions().mode() & PERMISSIONS;
            let name = path.file_name().map(|it| it.as_bytes().to_vec());
            (file, name, metadata.len(), mode)
        }
        Side::Stdio | Side::Inside { .. } => {
            let stdin = rustix::io::dup(io::stdin())
                .map_err(|error| Failure::local("stdin", error.into()))?;
            (File::from(stdin), None, 0, 0)
        }
    };
    let to = match name {
        Some(name) => inside_folder(files, to, &name).await?,
        None => to,
    };
    let bar = progress::transfer(size);
    let (sender, pieces) = mpsc::channel(AHEAD);
    let shown = bar.clone();
    std::thread::spawn(move || {
        let mut buffer = BytesMut::new();
        loop {
            let piece = read_piece(&mut file, &mut buffer);
            let last = !matches!(&piece, Ok(piece) if !piece.is_empty());
            if let Ok(piece) = &piece {
                shown.inc(piece.len() as u64);
                if last {
                    return;
                }
            }
            // Refused when the call is over; its answer says why.
            if sender.blocking_send(piece).is_err() || last {
                return;
            }
        }
    });
    let write = files.write(to).mode(mode);
    let write = write.make_parents(args.parents).sync(args.sync);
    write.from_channel(pieces).await?;
    bar.finish_and_clear();
    Ok(())
}

/// As much as one message carries, or what there is up to the end; empty at the end.
fn read_piece(file: &mut File, buffer: &mut BytesMut) -> io::Result<Bytes> {
    buffer.resize(PIECE, 0);
    let mut filled = 0;
    while filled < PIECE {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buffer.split_to(filled).freeze())
}

/// The path inside to write to: in a folder, under the source's name.
async fn inside_folder(files: &Files, to: Vec<u8>, name: &[u8]) -> Result<Vec<u8>, Failure> {
    let folder = if to.is_empty() || to.ends_with(b"/") {
        true
    } else {
        match files.stat(to.clone()).await {
            Ok(info) => info.kind == raw::FileKind::Directory,
            Err(error) if error.code() == Code::NotFound => false,
            Err(error) => return Err(error.into()),
        }
    };
    if !folder {
        return Ok(to);
    }
    let mut path = to;
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(path)
}

async fn download(files: &Files, from: Vec<u8>, to: Side) -> Result<(), Failure> {
    let mut reader = files.read(from.clone()).await?;
    match to {
        Side::Stdio | Side::Inside { .. } => {
            let stdout = rustix::io::dup(io::stdout())
                .map_err(|error| Failure::local("stdout", error.into()))?;
            copy(&mut reader, File::from(stdout))
                .await?
                .map_err(Failure::output)?;
            Ok(())
        }
        Side::Here(path) => save(&mut reader, &from, path).await,
    }
}

async fn save(reader: &mut FileReader, from: &[u8], to: PathBuf) -> Result<(), Failure> {
    let to_folder = to.is_dir() || to.as_os_str().as_bytes().ends_with(b"/");
    let to = if to_folder {
        let name = from.rsplit(|&b| b == b'/').next().unwrap_or(from);
        to.join(OsString::from_vec(name.to_vec()))
    } else {
        to
    };
    let failed = |error: io::Error| Failure::local(to.display().to_string(), error);
    let special = std::fs::metadata(&to).is_ok_and(|it| !it.is_file());
    if special {
        // A device or a pipe is written to, not replaced.
        let file = File::options().write(true).open(&to).map_err(failed)?;
        copy(reader, file).await?.map_err(failed)?;
        return Ok(());
    }
    // Aside, so that a copy that breaks leaves what was there; a signal must not leave it behind.
    let mut signals = Signals::new().map_err(|error| Failure::local("signals", error))?;
    let folder = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let aside = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mode = reader.info().mode & PERMISSIONS;
    let file = aside.as_file().try_clone().map_err(failed)?;
    let file = tokio::select! {
        biased;
        copied = copy(reader, file) => copied?.map_err(failed)?,
        signal = signals.end() => return Err(Failure::Interrupted { signal }),
    };
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(failed)?;
    aside.persist(&to).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes all of it, on a thread of its own so that the connection does not wait for the disk. The
/// outer error is the sandbox's side, the inner one ours.
async fn copy(reader: &mut FileReader, mut file: File) -> Result<io::Result<File>, Failure> {
    let bar = progress::transfer(reader.info().size);
    let (sender, mut pieces) = mpsc::channel::<Bytes>(AHEAD);
    let (done, written) = oneshot::channel();
    std::thread::spawn(move || {
        let mut outcome = Ok(());
        while let Some(piece) = pieces.blocking_recv() {
            outcome = file.write_all(&piece);
            if outcome.is_err() {
                break;
            }
        }
        // Nobody waits for it when the other side failed first.
        let _ = done.send(outcome.map(|()| file));
    });
    while let Some(piece) = reader.next().await? {
        bar.inc(piece.len() as u64);
        if sender.send(piece).await.is_err() {
            break;
        }
    }
    drop(sender);
    bar.finish_and_clear();
    written
        .await
        .map_err(|_| Failure::local("the writer", io::ErrorKind::Other.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_sandbox() {
        let inside = |name: &str, path: &str| Side::Inside {
            name: name.into(),
            path: path.into(),
        };
        for (text, side) in [
            ("-", Side::Stdio),
            ("box:/a:b", inside("box", "/a:b")),
            ("box:", inside("box", "")),
            (":/a", inside("", "/a")),
            ("./a:b", Side::Here("./a:b".into())),
            ("file", Side::Here("file".into())),
        ] {
            assert_eq!(Side::parse(OsStr::new(text)), side, "{text}");
        }
    }
}
