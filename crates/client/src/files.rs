//! Files inside a sandbox that is awake.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use overwinter_api::v1;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use v1::__buffa::oneof::{file_path, read_file_response};

use crate::client::{Client, repeatable};
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::types::SandboxRef;
use crate::upload::{Piece, upload};

/// How much of a file one message carries.
const PIECE: usize = 1 << 20;
/// How many messages a source may be ahead of the connection.
const AHEAD: usize = 4;

/// A path inside a sandbox: absolute, or relative to `/workspace`. Need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn message(&self) -> v1::FilePath {
        v1::FilePath {
            by: Some(match std::str::from_utf8(&self.0) {
                Ok(text) => file_path::By::Text(text.to_owned()),
                Err(_) => file_path::By::Raw(Bytes::copy_from_slice(&self.0)),
            }),
        }
    }
}

impl From<Vec<u8>> for FilePath {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<String> for FilePath {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<&str> for FilePath {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<&OsStr> for FilePath {
    fn from(text: &OsStr) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self::from(path.as_os_str())
    }
}

/// The files of one sandbox; see [`Client::files`]. Calls fail with `FailedPrecondition` while it
/// is not awake, and with `NotFound` where a file is not there.
#[derive(Clone, Debug)]
pub struct Files {
    client: Client,
    sandbox: SandboxRef,
    user: String,
}

impl Client {
    /// The files of a sandbox.
    pub fn files(&self, sandbox: impl Into<SandboxRef>) -> Files {
        Files {
            client: self.clone(),
            sandbox: sandbox.into(),
            user: String::new(),
        }
    }
}

impl Files {
    /// Acts with this user's rights instead of the sandbox's default user's.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Opens a file for reading, from its beginning to its end.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn read(&self, path: impl Into<FilePath>) -> Result<FileReader> {
        self.read_range(path, 0, 0).await
    }

    /// Opens a file for reading from `offset`, `length` bytes at most (0: to its end).
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn read_range(
        &self,
        path: impl Into<FilePath>,
        offset: u64,
        length: u64,
    ) -> Result<FileReader> {
        let request = v1::ReadFileRequest {
            sandbox: self.sandbox.message().into(),
            path: path.into().message().into(),
            offset,
            length,
            user: self.user.clone(),
        };
        let mut stream = self.client.rpc.files.read_file(request).await?;
        let first = stream.message().await.map_err(Error::from)?;
        let first: Option<v1::ReadFileResponse> = first.map(|it| it.to_owned_message());
        match first.and_then(|it| it.message) {
            Some(read_file_response::Message::Info(info)) => Ok(FileReader {
                info: *info,
                stream,
            }),
            Some(read_file_response::Message::Data(_)) | None => {
                Err(Error::protocol("file contents without the file's info"))
            }
        }
    }

    /// A file to be written as a whole.
    pub fn write(&self, path: impl Into<FilePath>) -> WriteFile {
        WriteFile {
            client: self.client.clone(),
            start: v1::WriteFileStart {
                sandbox: self.sandbox.message().into(),
                path: path.into().message().into(),
                user: self.user.clone(),
                ..Default::default()
            },
        }
    }

    /// What a path is; of a symbolic link, the link.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn stat(&self, path: impl Into<FilePath>) -> Result<v1::FileInfo> {
        let request = v1::StatFileRequest {
            sandbox: self.sandbox.message().into(),
            path: path.into().message().into(),
            user: self.user.clone(),
        };
        let answer = repeatable(|| self.client.rpc.files.stat_file(request.clone())).await?;
        info(answer.into_owned().info)
    }

    /// What a folder holds.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn list(&self, path: impl Into<FilePath>) -> Result<Vec<v1::FileInfo>> {
        let request = v1::ListDirectoryRequest {
            sandbox: self.sandbox.message().into(),
            path: path.into().message().into(),
            user: self.user.clone(),
        };
        let answer = repeatable(|| self.client.rpc.files.list_directory(request.clone())).await?;
        Ok(answer.into_owned().entries)
    }

    /// Makes a folder, and those above it where `parents`. `mode` 0: 0755.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn make_directory(
        &self,
        path: impl Into<FilePath>,
        mode: u32,
        parents: bool,
    ) -> Result<()> {
        let request = v1::MakeDirectoryRequest {
            sandbox: self.sandbox.message().into(),
            path: path.into().message().into(),
            mode,
            parents,
            user: self.user.clone(),
        };
        self.client.rpc.files.make_directory(request).await?;
        Ok(())
    }

    /// Renames a file or folder, replacing a file of the new name.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn rename(&self, from: impl Into<FilePath>, to: impl Into<FilePath>) -> Result<()> {
        let request = v1::RenameFileRequest {
            sandbox: self.sandbox.message().into(),
            from: from.into().message().into(),
            to: to.into().message().into(),
            user: self.user.clone(),
        };
        self.client.rpc.files.rename_file(request).await?;
        Ok(())
    }

    /// Removes a file or an empty folder, or a folder with all that it holds where `recursive`.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn remove(&self, path: impl Into<FilePath>, recursive: bool) -> Result<()> {
        let request = v1::RemoveFileRequest {
            sandbox: self.sandbox.message().into(),
            path: path.into().message().into(),
            recursive,
            user: self.user.clone(),
        };
        self.client.rpc.files.remove_file(request).await?;
        Ok(())
    }
}

fn info(info: impl Into<Option<v1::FileInfo>>) -> Result<v1::FileInfo> {
    info.into().ok_or_else(|| Error::protocol("no file info"))
}

/// A file being read. Dropping it ends the call.
pub struct FileReader {
    info: v1::FileInfo,
    stream: connectrpc::client::ServerStream<
        <Transport as connectrpc::client::ClientTransport>::ResponseBody,
        v1::__buffa::view::ReadFileResponseView<'static>,
    >,
}

impl FileReader {
    /// The file's info when it was opened.
    pub fn info(&self) -> &v1::FileInfo {
        &self.info
    }

    /// The next piece of its contents; `None` at its end.
    ///
    /// # Errors
    /// When the file can be read no further, or the connection broke: what came is not all.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let message = self.stream.message().await.map_err(Error::from)?;
            let Some(message) = message else {
                return Ok(None);
            };
            let message: v1::ReadFileResponse = message.to_owned_message();
            match message.message {
                Some(read_file_response::Message::Data(data)) => return Ok(Some(data)),
                Some(read_file_response::Message::Info(_)) | None => {}
            }
        }
    }

    /// Writes all that is left of it to `writer` and flushes that; answers with how many bytes.
    ///
    /// # Errors
    /// As [`next`](Self::next), and [`LOCAL_IO`](crate::reason::LOCAL_IO) when writing fails.
    pub async fn copy_to(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> Result<u64> {
        let mut copied = 0;
        while let Some(data) = self.next().await? {
            writer
                .write_all(&data)
                .await
                .map_err(|error| Error::io("write", error))?;
            copied += data.len() as u64;
        }
        writer
            .flush()
            .await
            .map_err(|error| Error::io("write", error))?;
        Ok(copied)
    }
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// A file to be written; see [`Files::write`]. It replaces the old one as a whole when all has
/// arrived: a call that breaks or is dropped leaves the old one.
#[derive(Clone, Debug)]
#[must_use]
pub struct WriteFile {
    client: Client,
    start: v1::WriteFileStart,
}

impl WriteFile {
    /// Its permissions; 0: 0644.
    pub fn mode(mut self, mode: u32) -> Self {
        self.start.mode = mode;
        self
    }

    /// On disk before the answer.
    pub fn sync(mut self, yes: bool) -> Self {
        self.start.sync = yes;
        self
    }

    /// Makes the folders above it that are not there.
    pub fn make_parents(mut self, yes: bool) -> Self {
        self.start.make_parents = yes;
        self
    }

    /// Writes these bytes, without copying them.
    ///
    /// # Errors
    /// See [`Files`].
    pub async fn bytes(self, data: impl Into<Bytes>) -> Result<v1::FileInfo> {
        let mut data: Bytes = data.into();
        let pieces = async move |sender: mpsc::Sender<Piece>| {
            while !data.is_empty() {
                let piece = data.split_to(data.len().min(PIECE));
                // Refused when the call is over; its answer says why.
                if sender.send(Piece::Data(piece)).await.is_err() {
                    return Ok(());
                }
            }
            let _ = sender.send(Piece::End).await;
            Ok(())
        };
        self.send(pieces).await
    }

    /// Writes all that `reader` has.
    ///
    /// # Errors
    /// See [`Files`]; [`LOCAL_IO`](crate::reason::LOCAL_IO) when reading fails.
    pub async fn from_reader(self, reader: &mut (impl AsyncRead + Unpin)) -> Result<v1::FileInfo> {
        let pieces = async move |sender: mpsc::Sender<Piece>| {
            let mut buffer = BytesMut::new();
            loop {
                buffer.reserve(PIECE);
                let read = reader.read_buf(&mut buffer).await?;
                let full = buffer.len() >= PIECE || read == 0 && !buffer.is_empty();
                if full
                    && sender
                        .send(Piece::Data(buffer.split().freeze()))
                        .await
                        .is_err()
                {
                    return Ok(());
                }
                if read == 0 {
                    let _ = sender.send(Piece::End).await;
                    return Ok(());
                }
            }
        };
        self.send(pieces).await
    }

    /// Writes what comes out of a channel until it closes: for a source that is read by a thread of
    /// its own. An error in it aborts the upload. Pieces of 1 MiB are best; 3 MiB is the most.
    ///
    /// # Errors
    /// See [`Files`]; [`LOCAL_IO`](crate::reason::LOCAL_IO) for an error that came in the channel.
    pub async fn from_channel(
        self,
        mut source: mpsc::Receiver<std::io::Result<Bytes>>,
    ) -> Result<v1::FileInfo> {
        let pieces = async move |sender: mpsc::Sender<Piece>| {
            while let Some(piece) = source.recv().await {
                if sender.send(Piece::Data(piece?)).await.is_err() {
                    return Ok(());
                }
            }
            let _ = sender.send(Piece::End).await;
            Ok(())
        };
        self.send(pieces).await
    }

    async fn send(
        self,
        pieces: impl AsyncFnOnce(mpsc::Sender<Piece>) -> std::io::Result<()>,
    ) -> Result<v1::FileInfo> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let call = upload(&self.client, self.start, receiver);
        // The source drops its sender when it fails, which aborts the call.
        let (answer, source) = tokio::join!(call, pieces(sender));
        source.map_err(|error| Error::io("read", error))?;
        info(answer?.info)
    }
}
