//! Operations: read, listed, waited for.

use std::time::Duration;

use buffa::MessageField;
use connectrpc::{Encodable, RequestContext, Response, ServiceRequest, ServiceResult};
use overwinter_api::v1;
use overwinter_lifecycle::ids::{OperationId, SandboxId};
use overwinter_lifecycle::operation::Operation;
use overwinter_store::OperationFilter;
use uuid::Uuid;

use super::{Api, ApiError, TENANT, convert};
use crate::reconciler::image::said;

const DEFAULT_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
const PAGE: u32 = 100;
const LARGEST_PAGE: u32 = 1_000;

impl Api {
    async fn find_operation(&self, id: &str) -> Result<Operation, ApiError> {
        let parsed = Uuid::parse_str(id).map_err(|_| ApiError::no_such_operation(id))?;
        self.operation(OperationId(parsed))
            .await?
            .ok_or_else(|| ApiError::no_such_operation(id))
    }

    /// With what is not in the record.
    fn shown(&self, operation: &Operation) -> v1::Operation {
        v1::Operation {
            progress: (self.reconciler.fetching.of(operation.id)).map_or_else(String::new, said),
            ..convert::operation(operation)
        }
    }
}

impl v1::OperationService for Api {
    async fn get_operation<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::GetOperationRequest>,
    ) -> ServiceResult<impl Encodable<v1::GetOperationResponse> + Send + use<'a>> {
        let operation = self.find_operation(request.id).await?;
        let operation = MessageField::some(self.shown(&operation));
        Response::ok(v1::GetOperationResponse { operation })
    }

    async fn list_operations<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ListOperationsRequest>,
    ) -> ServiceResult<impl Encodable<v1::ListOperationsResponse> + Send + use<'a>> {
        let size = match request.page_size {
            0 => PAGE,
            size => size.min(LARGEST_PAGE),
        };
        let id = |text: &str, field: &str| match text {
            "" => Ok(None),
            text => Uuid::parse_str(text)
                .map(Some)
                .map_err(|_| ApiError::invalid(format!("{field}: {text:?} is no id"))),
        };
        let sandbox = id(request.sandbox_id, "sandbox_id")?.map(SandboxId);
        let before = id(request.page_token, "page_token")?.map(OperationId);
        let found = self
            .reconciler
            .store
            .operations(OperationFilter {
                sandbox,
                tenant: Some(TENANT.to_owned()),
                unfinished_only: request.unfinished,
                before,
                limit: size as usize + 1,
            })
            .await
            .map_err(ApiError::from)?;
        let more = found.len() > size as usize;
        let shown = &found[..found.len().min(size as usize)];
        let next_page_token = match shown.last() {
            Some(last) if more => last.id.to_string(),
            Some(_) | None => String::new(),
        };
        let operations = shown.iter().map(|it| self.shown(it)).collect();
        Response::ok(v1::ListOperationsResponse {
            operations,
            next_page_token,
        })
    }

    async fn wait_operation<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::WaitOperationRequest>,
    ) -> ServiceResult<impl Encodable<v1::WaitOperationResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let time = match request.timeout.as_option() {
            Some(time) => convert::to_duration(time, "timeout")?.min(LONGEST_WAIT),
            None => DEFAULT_WAIT,
        };
        let operation = self.find_operation(&request.id).await?;
        let operation = self.wait(operation, time).await?;
        let operation = MessageField::some(self.shown(&operation));
        Response::ok(v1::WaitOperationResponse { operation })
    }
}
