//! Files: each call in the name of its user, on a worker.

use bytes::{BufMut, Bytes, BytesMut};
use connectrpc::{CodecFormat, ConnectError, Encodable, EncodedBody, InboundStream};
use futures::{Stream, StreamExt};
use overwinter_api::supervisor as wire;
use overwinter_api::supervisor::__buffa::oneof::read_file_response::Message as ReadMessage;
use overwinter_api::supervisor::__buffa::oneof::write_file_request::Message as WriteMessage;

use super::Service;
use crate::error::Refusal;
use crate::files::{self, Chunks, FilePath, Upload, Worker};
use crate::gate::WritePermit;

/// The tag of `ReadFileResponse.data`: field 2, length-delimited.
const DATA_TAG: u8 = 2 << 3 | 2;

/// One message of a download. The data goes to the socket as it was read, without a copy into an
/// encoded message.
pub(crate) enum ReadItem {
    Info(Box<wire::FileInfo>),
    Data(Bytes),
}

impl Encodable<wire::ReadFileResponse> for ReadItem {
    fn encode(&self, codec: CodecFormat) -> Result<Bytes, ConnectError> {
        self.encode_segments(codec)
            .map(EncodedBody::into_contiguous)
    }

    fn encode_segments(&self, codec: CodecFormat) -> Result<EncodedBody, ConnectError> {
        match self {
            Self::Info(info) => wire::ReadFileResponse {
                message: Some(ReadMessage::Info(info.clone())),
            }
            .encode_segments(codec),
            Self::Data(data) => {
                let mut head = BytesMut::with_capacity(8);
                head.put_u8(DATA_TAG);
                let mut length = data.len();
                while length >= 0x80 {
                    head.put_u8(length as u8 | 0x80);
                    length >>= 7;
                }
                head.put_u8(length as u8);
                Ok(EncodedBody::from_segments(vec![
                    head.freeze(),
                    data.clone(),
                ]))
            }
        }
    }
}

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
                Ok(chunk) => Some((Ok(ReadItem::Data(chunk)), Some((chunks, detached)))),
                Err(refusal) => Some((Err(refusal), None)),
            }
        });
        Ok(futures::stream::iter([Ok(ReadItem::Info(Box::new(info)))])
            .chain(data)
            .map(|item| item.map_err(ConnectError::from)))
    }

    /// Takes an upload; the target changes at its end message and not before.
    pub(super) async fn upload(
        &self,
        mut requests: InboundStream<wire::WriteFileRequest>,
    ) -> Result<wire::WriteFileResponse, Refusal> {
        let permit = self.sandbox.gate.admit_write()?;
        let Some(WriteMessage::Start(start)) = self.next_part(&mut requests, &permit).await? else {
            return Err(Refusal::Invalid("the first message is the start".into()));
        };
        let path = self.path(&start.path)?;
        let worker = self.worker(&start.user)?;
        let creating = path.clone();
        let upload = worker
            .run(&path, move || Upload::create(&creating, &start))
            .await?;
        loop {
            match self.next_part(&mut requests, &permit).await? {
                Some(WriteMessage::Data(data)) => {
                    let upload = upload.clone();
                    worker.run(&path, move || upload.write(&data)).await?;
                }
                Some(WriteMessage::End(_)) => break,
                Some(WriteMessage::Start(_)) => {
                    return Err(Refusal::Invalid("an upload starts once".into()));
                }
                None => {}
            }
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

    async fn next_part(
        &self,
        requests: &mut InboundStream<wire::WriteFileRequest>,
        permit: &WritePermit,
    ) -> Result<Option<WriteMessage>, Refusal> {
        let mut detached = self.detached();
        tokio::select! {
            part = requests.next() => match part {
                Some(Ok(part)) => Ok(part.to_owned_message().message),
                Some(Err(_)) | None => Err(Refusal::UploadBroken),
            },
            () = permit.revoked() => Err(Refusal::Quiesced),
            _ = detached.wait_for(|detached| *detached) => Err(Refusal::Detached),
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
