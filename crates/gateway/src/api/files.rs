//! Files inside sandboxes.

use std::sync::{Arc, OnceLock};

use buffa::MessageField;
use connectrpc::{
    Encodable, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::StreamExt;
use overwinter_api::{supervisor as wire, v1};
use overwinter_driver::AgentError;

use super::{Api, ApiError};
use crate::dataplane::files::{
    PIECE, Taking, WHOLE, WaitsFor, info, noting, path, reading, writing, written,
};
use crate::sessions::Admission;

impl Api {
    async fn admit_file(
        &self,
        sandbox: Option<v1::SandboxRef>,
        kind: &'static str,
    ) -> Result<Admission, ApiError> {
        self.check_admission()?;
        let (slot, id) = self.awake(sandbox).await?;
        Ok(self.reconciler.admit_call(slot, id, kind).await?)
    }
}

impl v1::FileService for Api {
    async fn read_file(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ReadFileRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<v1::ReadFileResponse> + Send + use<>>> {
        let request = request.to_owned_message();
        let read = wire::ReadFileRequest {
            path: path(request.path.into_option(), "path")?,
            offset: request.offset,
            length: request.length,
            user: request.user,
        };
        let mut admission = self
            .admit_file(request.sandbox.into_option(), "read_file")
            .await?;
        let stream = self.asked(admission.session.agent.read_file(read)).await?;
        admission.entered();
        let ports = self.reconciler.ports.clone();
        let patience = self.patience() * PIECE;
        Response::ok(reading(ports, patience, stream, admission).boxed())
    }

    async fn write_file<'a>(
        &'a self,
        ctx: RequestContext,
        requests: InboundStream<v1::WriteFileRequest>,
    ) -> ServiceResult<impl Encodable<v1::WriteFileResponse> + Send + use<'a>> {
        let mut requests = written(requests, ctx.extensions().get().cloned());
        let first = requests.next().await.transpose()?.flatten();
        let Some(v1::write_file_request::Message::Start(start)) = first else {
            return Err(ApiError::invalid("the first message is a start").into());
        };
        let write = wire::WriteFileStart {
            path: path(start.path.into_option(), "path")?,
            mode: start.mode,
            user: start.user,
            sync: start.sync,
            make_parents: start.make_parents,
        };
        let mut admission = self
            .admit_file(start.sandbox.into_option(), "write_file")
            .await?;
        let agent = admission.session.agent.clone();
        // On its way once the connection takes its first message: what comes later comes behind it.
        let refused = Arc::new(OnceLock::new());
        let taking = Arc::new(Taking::default());
        let writing = noting(writing(write, requests, refused.clone()), taking.clone());
        let (taken, mut reached) = tokio::sync::oneshot::channel();
        let mut taken = Some(taken);
        let input = writing.inspect(move |_| {
            if let Some(taken) = taken.take() {
                // Nobody listens when the call has ended already.
                let _ = taken.send(());
            }
        });
        let write = agent.write_file(input.boxed());
        tokio::pin!(write);
        let answer = loop {
            let before = taking.now();
            let patience = self.patience() * before.1.patience();
            let patience = self.reconciler.ports.clock.sleep(patience);
            tokio::select! {
                biased;
                answer = &mut write => break answer,
                Ok(()) = &mut reached, if !reached.is_terminated() => admission.entered(),
                () = patience => {
                    if before.1 != WaitsFor::Client && taking.now() == before {
                        break Err(AgentError::TimedOut);
                    }
                }
            }
        };
        let answer = match (answer, refused.get()) {
            (Err(_), Some(refused)) => return Err(refused.clone()),
            (answer, _) => answer.map_err(ApiError::from)?,
        };
        let file = MessageField::some(info(answer));
        Response::ok(v1::WriteFileResponse { info: file })
    }

    async fn stat_file<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::StatFileRequest>,
    ) -> ServiceResult<impl Encodable<v1::StatFileResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let stat = wire::StatFileRequest {
            path: path(request.path.into_option(), "path")?,
            user: request.user,
        };
        let admission = self
            .admit_file(request.sandbox.into_option(), "stat_file")
            .await?;
        let found = self.asked(admission.session.agent.stat_file(stat)).await?;
        Response::ok(v1::StatFileResponse {
            info: MessageField::some(info(found)),
        })
    }

    async fn list_directory<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ListDirectoryRequest>,
    ) -> ServiceResult<impl Encodable<v1::ListDirectoryResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let list = wire::ListDirectoryRequest {
            path: path(request.path.into_option(), "path")?,
            user: request.user,
        };
        let admission = self
            .admit_file(request.sandbox.into_option(), "list_directory")
            .await?;
        let entries = self
            .asked(admission.session.agent.list_directory(list))
            .await?;
        let entries = entries.into_iter().map(info).collect();
        Response::ok(v1::ListDirectoryResponse { entries })
    }

    async fn make_directory<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::MakeDirectoryRequest>,
    ) -> ServiceResult<impl Encodable<v1::MakeDirectoryResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let make = wire::MakeDirectoryRequest {
            path: path(request.path.into_option(), "path")?,
            mode: request.mode,
            parents: request.parents,
            user: request.user,
        };
        let admission = self
            .admit_file(request.sandbox.into_option(), "make_directory")
            .await?;
        self.asked(admission.session.agent.make_directory(make))
            .await?;
        Response::ok(v1::MakeDirectoryResponse {})
    }

    async fn rename_file<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::RenameFileRequest>,
    ) -> ServiceResult<impl Encodable<v1::RenameFileResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let rename = wire::RenameFileRequest {
            from: path(request.from.into_option(), "from")?,
            to: path(request.to.into_option(), "to")?,
            user: request.user,
        };
        let admission = self
            .admit_file(request.sandbox.into_option(), "rename_file")
            .await?;
        self.asked(admission.session.agent.rename_file(rename))
            .await?;
        Response::ok(v1::RenameFileResponse {})
    }

    async fn remove_file<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::RemoveFileRequest>,
    ) -> ServiceResult<impl Encodable<v1::RemoveFileResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let remove = wire::RemoveFileRequest {
            path: path(request.path.into_option(), "path")?,
            recursive: request.recursive,
            user: request.user,
        };
        let admission = self
            .admit_file(request.sandbox.into_option(), "remove_file")
            .await?;
        // A folder may hold millions of files.
        let times = if remove.recursive { WHOLE } else { 1 };
        let removed = admission.session.agent.remove_file(remove);
        self.asked_within(self.patience() * times, removed).await?;
        Response::ok(v1::RemoveFileResponse {})
    }
}
