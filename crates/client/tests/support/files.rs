//! Files by path, as bytes. What is read of one that is called `endless` has no end.

use connectrpc::{
    ErrorCode, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::StreamExt as _;
use overwinter_api::v1;
use v1::__buffa::oneof::{file_path::By, read_file_response, write_file_request};

use super::{Fake, error};

fn path(path: &v1::FilePath) -> String {
    match &path.by {
        Some(By::Text(text)) => text.clone(),
        Some(By::Raw(raw)) => raw.escape_ascii().to_string(),
        None => String::new(),
    }
}

fn info(name: &str, size: usize) -> v1::FileInfo {
    v1::FileInfo {
        name: name.to_owned(),
        kind: v1::FileKind::File.into(),
        size: size as u64,
        mode: 0o640,
        ..Default::default()
    }
}

impl v1::FileService for Fake {
    async fn read_file(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ReadFileRequest>,
    ) -> ServiceResult<ServiceStream<v1::ReadFileResponse>> {
        let name = path(&request.to_owned_message().path);
        let Some(contents) = self.state().files.get(&name).cloned() else {
            return Err(error(
                ErrorCode::NotFound,
                "FILE_NOT_FOUND",
                &format!("there is no file {name}"),
                "",
            ));
        };
        let mut messages = vec![read_file_response::Message::from(info(
            &name,
            contents.len(),
        ))];
        for piece in contents.chunks(1 << 20) {
            messages.push(read_file_response::Message::Data(
                bytes::Bytes::copy_from_slice(piece),
            ));
        }
        let messages = messages.into_iter().map(|message| {
            Ok(v1::ReadFileResponse {
                message: Some(message),
            })
        });
        let messages = futures::stream::iter(messages);
        if name.ends_with("endless") {
            return Response::ok(Box::pin(messages.chain(futures::stream::pending())));
        }
        Response::ok(Box::pin(messages))
    }

    async fn write_file(
        &self,
        _: RequestContext,
        mut requests: InboundStream<v1::WriteFileRequest>,
    ) -> ServiceResult<v1::WriteFileResponse> {
        let mut name = String::new();
        let mut contents = Vec::new();
        while let Some(request) = requests.next().await {
            match request?.to_owned_message().message {
                Some(write_file_request::Message::Start(start)) => name = path(&start.path),
                Some(write_file_request::Message::Data(data)) => contents.extend_from_slice(&data),
                Some(write_file_request::Message::End(_)) => {
                    let info = info(&name, contents.len());
                    self.state().files.insert(name, contents);
                    return Response::ok(v1::WriteFileResponse { info: info.into() });
                }
                None => {}
            }
        }
        Err(error(ErrorCode::Aborted, "UPLOAD_ABORTED", "no end", ""))
    }

    async fn stat_file(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::StatFileRequest>,
    ) -> ServiceResult<v1::StatFileResponse> {
        let name = path(&request.to_owned_message().path);
        let size = self.state().files.get(&name).map_or(0, Vec::len);
        Response::ok(v1::StatFileResponse {
            info: info(&name, size).into(),
        })
    }

    async fn list_directory(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListDirectoryRequest>,
    ) -> ServiceResult<v1::ListDirectoryResponse> {
        let state = self.state();
        let entries = state.files.iter().map(|(name, it)| info(name, it.len()));
        Response::ok(v1::ListDirectoryResponse {
            entries: entries.collect(),
        })
    }

    async fn make_directory(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::MakeDirectoryRequest>,
    ) -> ServiceResult<v1::MakeDirectoryResponse> {
        Response::ok(v1::MakeDirectoryResponse::default())
    }

    async fn rename_file(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::RenameFileRequest>,
    ) -> ServiceResult<v1::RenameFileResponse> {
        let request = request.to_owned_message();
        let mut state = self.state();
        if let Some(contents) = state.files.remove(&path(&request.from)) {
            state.files.insert(path(&request.to), contents);
        }
        Response::ok(v1::RenameFileResponse::default())
    }

    async fn remove_file(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::RemoveFileRequest>,
    ) -> ServiceResult<v1::RemoveFileResponse> {
        self.state()
            .files
            .remove(&path(&request.to_owned_message().path));
        Response::ok(v1::RemoveFileResponse::default())
    }
}
