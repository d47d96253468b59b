//! The one-hop stream: what a file's contents cost when there is nothing but the wire.
//!
//! The same client, messages and transport settings over one Unix socket, to a process that drops
//! what is written and makes up what is read. Through the gateway the same bytes take two hops and
//! end in a file inside the sandbox.

use bytes::Bytes;
use connectrpc::dispatcher::codegen::into_stream_messages;
use connectrpc::{
    CompressionPolicy, ConnectError, ConnectRpcService, Limits, Response, Router,
    view_client_streaming_handler_fn, view_streaming_handler_fn,
};
use futures::{StreamExt, stream};
use overwinter_api::v1;

/// As the supervisor reads a file.
pub const PIECE: usize = 256 << 10;

/// `ReadFile` gives as many zeros as `length` asks for; `WriteFile` counts and drops.
#[must_use]
pub fn services() -> ConnectRpcService<Router> {
    let router = Router::new()
        .route_view_server_stream::<_, _, v1::ReadFileResponse>(
            v1::FILE_SERVICE_SERVICE_NAME,
            "ReadFile",
            view_streaming_handler_fn(
                |_ctx, request: buffa::view::OwnedView<ReadRequest>| async move {
                    let length = request.reborrow().length;
                    Response::stream_ok(produce(length))
                },
            ),
        )
        .route_view_client_stream(
            v1::FILE_SERVICE_SERVICE_NAME,
            "WriteFile",
            view_client_streaming_handler_fn(|_ctx, requests, format| async move {
                let mut requests = into_stream_messages::<v1::WriteFileRequest>(requests);
                let mut size = 0;
                while let Some(request) = requests.next().await {
                    let message = request?.to_owned_message().message;
                    if let Some(v1::write_file_request::Message::Data(data)) = message {
                        size += data.len() as u64;
                    }
                }
                let info = v1::FileInfo {
                    size,
                    ..Default::default()
                };
                Response::new(v1::WriteFileResponse { info: info.into() })
                    .encode::<v1::WriteFileResponse>(format)
            }),
        );
    ConnectRpcService::new(router)
        .with_limits(Limits::unlimited().with_max_message_size(8 << 20))
        .with_compression_policy(CompressionPolicy::disabled())
}

type ReadRequest = v1::__buffa::view::ReadFileRequestView<'static>;

fn produce(
    length: u64,
) -> impl futures::Stream<Item = Result<v1::ReadFileResponse, ConnectError>> + Send {
    let piece = Bytes::from(vec![0; PIECE]);
    let info = v1::FileInfo {
        size: length,
        ..Default::default()
    };
    let message = |message| v1::ReadFileResponse {
        message: Some(message),
    };
    let first = stream::iter([Ok(message(info.into()))]);
    let rest = (0..length.div_ceil(PIECE as u64)).map(move |_| {
        Ok(message(v1::read_file_response::Message::Data(
            piece.clone(),
        )))
    });
    first.chain(stream::iter(rest))
}
