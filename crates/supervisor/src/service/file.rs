//! Files: each call in the name of its user, on a worker.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use connectrpc::{ConnectError, InboundStream};
use futures::future::{Fuse, FusedFuture, FutureExt};
use futures::{Stream, StreamExt};
use overwinter_api::content::{Aside, Item};
use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::write_file_request::Message as WriteMessage;

use super::Service;
use crate::error::Refusal;
use crate::files::{self, Chunks, FilePath, Upload, Worker};
use crate::gate::WritePermit;

/// One message of a download.
pub(crate) type ReadItem = Item<wire::ReadFileResponse>;

/// How much of an upload may wait for the worker that writes it, and in how many pieces. Beyond
/// that its sender waits.
const WAITING_BYTES: usize = 1 << 20;
const WAITING_PIECES: usize = 64;

impl Service {
    fn path(&self, asked: &[u8]) -> Result<FilePath, Refusal> {
        FilePath::new(asked, &self.sandbox.config.workspace)
    }

    fn worker(&self, user: &str) -> Result<Worker, Refusal> {
        Worker::new(&self.sandbox.own, user)
    }

    /// Opens, then streams. A suspension lets it go on until the connection is detached.
    pub(super) async fn content(
        &self,
        request: wire::ReadFileRequest,
    ) -> Result<impl Stream<Item = Result<ReadItem, ConnectError>> + Send + use<>, Refusal> {
        let path = self.path(&request.path)?;
        let opening = path.clone();
        let (file, info) = self
            .worker(&request.user)?
            .run(&path, move || files::open(&opening))
            .await?;
        let chunks = Chunks::new(file, path, request.offset, request.length);
        let detached = self.detached();
        let data = futures::stream::unfold(Some((chunks, detached)), |state| async move {
            let (mut chunks, mut detached) = state?;
            let chunk = tokio::select! {
                biased;
                _ = detached.wait_for(|detached| *detached) => Err(Refusal::Detached),
                chunk = chunks.next() => chunk?,
            };
            match chunk {
                Ok(chunk) => Some((Ok(Item::Data(chunk)), Some((chunks, detached)))),
                Err(refusal) => Some((Err(refusal), None)),
            }
        });
        let first = wire::ReadFileResponse {
            message: Some(info.into()),
        };
        Ok(futures::stream::iter([Ok(Item::Message(first))])
            .chain(data)
            .map(|item| item.map_err(ConnectError::from)))
    }

    /// Takes an upload; the target changes at its end message and not before.
    pub(super) async fn upload(
        &self,
        requests: InboundStream<wire::WriteFileRequest>,
        aside: Option<Aside>,
    ) -> Result<wire::WriteFileResponse, Refusal> {
        let permit = Arc::new(self.sandbox.gate.admit_write()?);
        let mut parts = Parts { requests, aside };
        let first = tokio::select! {
            first = parts.next() => first?,
            refusal = self.stopped(&permit) => return Err(refusal),
        };
        let Some(WriteMessage::Start(start)) = first else {
            return Err(Refusal::Invalid("the first message is the start".into()));
        };
        let path = self.path(&start.path)?;
        let worker = self.worker(&start.user)?;
        let creating = path.clone();
        let upload = worker
            .run(&path, move || Upload::create(&creating, &start))
            .await?;
        tokio::select! {
            filled = fill(&worker, &path, &upload, &mut parts, &permit) => filled?,
            refusal = self.stopped(&permit) => return Err(refusal),
        }
        let finishing = path.clone();
        let info = worker
            .run(&path, move || {
                let info = upload.finish(&finishing);
                // Only now is the write over, also when nobody waits for it any more.
                drop(permit);
                info
            })
            .await?;
        Ok(wire::WriteFileResponse { info: info.into() })
    }

    /// Resolves when a write may go on no longer.
    async fn stopped(&self, permit: &WritePermit) -> Refusal {
        let mut detached = self.detached();
        tokio::select! {
            () = permit.revoked() => Refusal::Quiesced,
            _ = detached.wait_for(|detached| *detached) => Refusal::Detached,
        }
    }

    pub(super) async fn stat(
        &self,
        request: wire::StatFileRequest,
    ) -> Result<wire::StatFileResponse, Refusal> {
        let path = self.path(&request.path)?;
        let asked = path.clone();
        let worker = self.worker(&request.user)?;
        let info = worker.run(&path, move || files::stat(&asked)).await?;
        Ok(wire::StatFileResponse { info: info.into() })
    }

    pub(super) async fn list(
        &self,
        request: wire::ListDirectoryRequest,
    ) -> Result<wire::ListDirectoryResponse, Refusal> {
        let path = self.path(&request.path)?;
        let asked = path.clone();
        let worker = self.worker(&request.user)?;
        let entries = worker.run(&path, move || files::list(&asked)).await?;
        Ok(wire::ListDirectoryResponse { entries })
    }

    pub(super) async fn make(
        &self,
        request: wire::MakeDirectoryRequest,
    ) -> Result<wire::MakeDirectoryResponse, Refusal> {
        let permit = self.sandbox.gate.admit_write()?;
        let path = self.path(&request.path)?;
        let asked = path.clone();
        let worker = self.worker(&request.user)?;
        worker
            .run(&path, move || {
                let _permit = permit;
                files::make_directory(&asked, request.mode, request.parents)
            })
            .await?;
        Ok(wire::MakeDirectoryResponse::default())
    }

    pub(super) async fn rename(
        &self,
        request: wire::RenameFileRequest,
    ) -> Result<wire::RenameFileResponse, Refusal> {
        let permit = self.sandbox.gate.admit_write()?;
        let from = self.path(&request.from)?;
        let to = self.path(&request.to)?;
        let asked = from.clone();
        let worker = self.worker(&request.user)?;
        worker
            .run(&from, move || {
                let _permit = permit;
                files::rename(&asked, &to)
            })
            .await?;
        Ok(wire::RenameFileResponse::default())
    }

    pub(super) async fn remove(
        &self,
        request: wire::RemoveFileRequest,
    ) -> Result<wire::RemoveFileResponse, Refusal> {
        let permit = self.sandbox.gate.admit_write()?;
        let path = self.path(&request.path)?;
        let asked = path.clone();
        let worker = self.worker(&request.user)?;
        worker
            .run(&path, move || {
                let _permit = permit;
                files::remove(&asked, request.recursive)
            })
            .await?;
        Ok(wire::RemoveFileResponse::default())
    }
}

/// The messages of an upload, with the data that was taken aside in its place.
struct Parts {
    requests: InboundStream<wire::WriteFileRequest>,
    aside: Option<Aside>,
}

impl Parts {
    async fn next(&mut self) -> Result<Option<WriteMessage>, Refusal> {
        match self.requests.next().await {
            Some(Ok(part)) => {
                let message = part.to_owned_message().message;
                let data = || Some(WriteMessage::Data(self.aside.as_ref()?.pop()?));
                Ok(message.or_else(data))
            }
            Some(Err(_)) | None => Err(Refusal::UploadBroken),
        }
    }
}

/// Writes what comes until the end message. While a worker writes, what comes meanwhile is gathered
/// for the next write.
async fn fill(
    worker: &Worker,
    path: &FilePath,
    upload: &Arc<Upload>,
    parts: &mut Parts,
    permit: &Arc<WritePermit>,
) -> Result<(), Refusal> {
    let mut waiting = Vec::new();
    let mut ended = false;
    let mut writing = pin!(Fuse::terminated());
    loop {
        if writing.is_terminated() {
            if !waiting.is_empty() {
                let (upload, permit) = (Arc::clone(upload), Arc::clone(permit));
                let pieces = std::mem::take(&mut waiting);
                writing.set(write(worker, path, upload, pieces, permit).fuse());
            } else if ended {
                return Ok(());
            }
        }
        let bytes: usize = waiting.iter().map(Bytes::len).sum();
        let room = bytes < WAITING_BYTES && waiting.len() < WAITING_PIECES;
        tokio::select! {
            written = &mut writing, if !writing.is_terminated() => written?,
            part = parts.next(), if room && !ended => match part? {
                Some(WriteMessage::Data(data)) if data.is_empty() => {}
                Some(WriteMessage::Data(data)) => waiting.push(data),
                Some(WriteMessage::End(_)) => ended = true,
                Some(WriteMessage::Start(_)) => {
                    return Err(Refusal::Invalid("an upload starts once".into()));
                }
                None => {}
            },
        }
    }
}

/// Appends; holds the permit for as long, also when nobody waits for it any more.
async fn write(
    worker: &Worker,
    path: &FilePath,
    upload: Arc<Upload>,
    pieces: Vec<Bytes>,
    permit: Arc<WritePermit>,
) -> Result<(), Refusal> {
    let work = move || {
        let written = upload.write(&pieces);
        // If it is the last to know of the upload, what was written is removed within the permit.
        drop(upload);
        drop(permit);
        written
    };
    worker.run(path, work).await
}
