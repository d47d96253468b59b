//! One WriteFile, from a source that is read while it is sent.

use connectrpc::ConnectError;
use overwinter_api::content::{self, Part, enveloped};
use overwinter_api::v1;
use tokio::sync::mpsc;
use v1::__buffa::oneof::write_file_request::Message;

use crate::client::Client;
use crate::error::{Error, Result};

/// What the source of an upload sends. A source that ends without `End` aborts the upload, and the
/// old file stays.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(bytes::Bytes),
    End,
}

/// Carries out one WriteFile.
pub(crate) async fn upload(
    client: &Client,
    start: v1::WriteFileStart,
    pieces: mpsc::Receiver<Piece>,
) -> Result<v1::WriteFileResponse> {
    let first = futures::stream::iter([Ok(message(start))]);
    let rest = futures::stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        Some(match pieces.recv().await {
            Some(Piece::Data(data)) => (Ok(Part::Data(data)), Some(pieces)),
            Some(Piece::End) => (Ok(message(v1::WriteFileEnd::default())), None),
            None => {
                let ended = ConnectError::aborted("the upload's source ended early");
                (Err(ended), None)
            }
        })
    });
    let parts = futures::StreamExt::chain(first, rest);
    let transport = content::Upload::new(client.rpc.transport.clone(), parts);
    let answer = v1::FileServiceClient::new(transport, client.rpc.config.clone())
        .write_file(futures::stream::empty())
        .await
        .map_err(Error::from)?;
    Ok(answer.into_owned())
}

fn message(message: impl Into<Message>) -> Part {
    Part::Message(enveloped(&v1::WriteFileRequest {
        message: Some(message.into()),
    }))
}
