//! Records, verbs and operations. Every verb is done at once, except where a name asks otherwise:
//! a suspend of `stubborn` fails, and no verb on what is called `slow…` ever ends.

use connectrpc::{
    ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt as _;
use overwinter_api::v1;
use v1::__buffa::oneof::outcome;

use super::{Fake, error};

impl Fake {
    fn ended(
        &self,
        kind: v1::OperationKind,
        sandbox: v1::Sandbox,
        options: &v1::WriteOptions,
        result: outcome::Result,
    ) -> v1::OperationResponse {
        let operation = v1::Operation {
            id: uuid::Uuid::now_v7().to_string(),
            sandbox_id: sandbox.id.clone(),
            kind: kind.into(),
            step: "ended".into(),
            outcome: v1::Outcome {
                result: Some(result),
            }
            .into(),
            ..Default::default()
        };
        let mut state = self.state();
        state.keys.push(options.idempotency_key.clone());
        state.operations.push(operation.clone());
        v1::OperationResponse {
            operation: operation.into(),
            sandbox: sandbox.into(),
            disposition: v1::Disposition::Accepted.into(),
        }
    }
}

/// Whether verbs on it do not end.
fn is_slow(name: &str) -> bool {
    name.starts_with("slow")
}

impl Fake {
    /// The operation that does not end; the same where the key is. A call that waits has no answer.
    async fn slow(
        &self,
        kind: v1::OperationKind,
        sandbox: v1::Sandbox,
        options: &v1::WriteOptions,
    ) -> v1::OperationResponse {
        let operation = {
            let mut state = self.state();
            let known = state.slow.get(&options.idempotency_key).cloned();
            known.unwrap_or_else(|| {
                let operation = v1::Operation {
                    id: uuid::Uuid::now_v7().to_string(),
                    sandbox_id: sandbox.id.clone(),
                    kind: kind.into(),
                    step: "prepare".into(),
                    ..Default::default()
                };
                let key = options.idempotency_key.clone();
                state.slow.insert(key, operation.clone());
                state.operations.push(operation.clone());
                let named = state.sandboxes.iter_mut();
                for sandbox in named.filter(|it| it.name == sandbox.name) {
                    sandbox.running = operation.clone().into();
                }
                operation
            })
        };
        if options.wait.is_set() {
            std::future::pending::<()>().await;
        }
        v1::OperationResponse {
            operation: operation.into(),
            sandbox: sandbox.into(),
            disposition: v1::Disposition::Accepted.into(),
        }
    }
}

fn done(achieved: v1::Achieved) -> outcome::Result {
    outcome::Result::from(v1::Succeeded {
        achieved: achieved.into(),
        ..Default::default()
    })
}

impl v1::SandboxService for Fake {
    async fn create_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::CreateSandboxRequest>,
    ) -> ServiceResult<v1::OperationResponse> {
        let request = request.to_owned_message();
        if is_slow(&request.name) {
            if self.find(&name_ref(&request.name)).is_err() {
                self.add(&request.name);
            }
            let sandbox = self.find(&name_ref(&request.name))?;
            let kind = v1::OperationKind::Create;
            return Response::ok(self.slow(kind, sandbox, &request.options).await);
        }
        if self.find(&name_ref(&request.name)).is_ok() {
            return Err(error(
                connectrpc::ErrorCode::AlreadyExists,
                "NAME_TAKEN",
                &format!("the name \"{}\" is taken", request.name),
                "choose another name",
            ));
        }
        self.add(&request.name);
        for sandbox in &mut self.state().sandboxes {
            if sandbox.name == request.name {
                sandbox.spec = request.spec.clone();
                sandbox.config = request.config.clone();
                sandbox.labels = request.labels.clone();
            }
        }
        let sandbox = self.find(&name_ref(&request.name))?;
        Response::ok(self.ended(
            v1::OperationKind::Create,
            sandbox,
            &request.options,
            done(v1::Achieved::Done),
        ))
    }

    async fn get_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::GetSandboxRequest>,
    ) -> ServiceResult<v1::GetSandboxResponse> {
        let sandbox = self.find(&request.to_owned_message().sandbox)?;
        Response::ok(v1::GetSandboxResponse {
            sandbox: sandbox.into(),
        })
    }

    async fn list_sandboxes(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ListSandboxesRequest>,
    ) -> ServiceResult<v1::ListSandboxesResponse> {
        let request = request.to_owned_message();
        let mut state = self.state();
        state.pages += 1;
        let from: usize = request.page_token.parse().unwrap_or(0);
        let to = (from + request.page_size as usize).min(state.sandboxes.len());
        let more = to < state.sandboxes.len();
        Response::ok(v1::ListSandboxesResponse {
            sandboxes: state.sandboxes[from..to]
                .iter()
                .filter(|it| {
                    request
                        .labels
                        .iter()
                        .all(|(k, v)| it.labels.get(k) == Some(v))
                })
                .cloned()
                .collect(),
            next_page_token: if more { to.to_string() } else { String::new() },
        })
    }

    async fn update_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::UpdateSandboxRequest>,
    ) -> ServiceResult<v1::UpdateSandboxResponse> {
        let request = request.to_owned_message();
        let id = self.find(&request.sandbox)?.id;
        for sandbox in &mut self.state().sandboxes {
            if sandbox.id == id {
                sandbox.labels.extend(request.labels.clone());
                let config = sandbox.config.get_or_insert_default();
                config.version += 1;
                config.env.extend(request.env.clone());
                if request.policy.is_set() {
                    config.policy = request.policy.clone();
                }
            }
        }
        let sandbox = self.find(&request.sandbox)?;
        Response::ok(v1::UpdateSandboxResponse {
            sandbox: sandbox.into(),
        })
    }

    async fn suspend_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SuspendSandboxRequest>,
    ) -> ServiceResult<v1::OperationResponse> {
        let request = request.to_owned_message();
        let sandbox = self.find(&request.sandbox)?;
        let kind = v1::OperationKind::Suspend;
        if is_slow(&sandbox.name) {
            return Response::ok(self.slow(kind, sandbox, &request.options).await);
        }
        if sandbox.name == "stubborn" {
            let failed = outcome::Result::from(v1::OperationError {
                reason: "SUPERVISOR_UNREACHABLE".into(),
                message: "the supervisor does not answer".into(),
                next: "suspend it at stop".into(),
            });
            return Response::ok(self.ended(kind, sandbox, &request.options, failed));
        }
        let depth = match request.depth.as_known() {
            Some(v1::Depth::DEPTH_UNSPECIFIED) | None => v1::Depth::Stop,
            Some(depth) => depth,
        };
        self.set_phase(&sandbox.name, v1::Phase::Suspended, depth);
        let sandbox = self.find(&request.sandbox)?;
        Response::ok(self.ended(kind, sandbox, &request.options, done(v1::Achieved::Done)))
    }

    async fn resume_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::ResumeSandboxRequest>,
    ) -> ServiceResult<v1::OperationResponse> {
        let request = request.to_owned_message();
        let sandbox = self.find(&request.sandbox)?;
        if is_slow(&sandbox.name) {
            let kind = v1::OperationKind::Resume;
            return Response::ok(self.slow(kind, sandbox, &request.options).await);
        }
        self.set_phase(&sandbox.name, v1::Phase::Ready, v1::Depth::Unspecified);
        let sandbox = self.find(&request.sandbox)?;
        Response::ok(self.ended(
            v1::OperationKind::Resume,
            sandbox,
            &request.options,
            done(v1::Achieved::Memory),
        ))
    }

    async fn start_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::StartSandboxRequest>,
    ) -> ServiceResult<v1::OperationResponse> {
        let request = request.to_owned_message();
        let sandbox = self.find(&request.sandbox)?;
        if is_slow(&sandbox.name) {
            let kind = v1::OperationKind::Start;
            return Response::ok(self.slow(kind, sandbox, &request.options).await);
        }
        Response::ok(v1::OperationResponse {
            sandbox: sandbox.into(),
            disposition: v1::Disposition::NoOp.into(),
            ..Default::default()
        })
    }

    async fn delete_sandbox(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::DeleteSandboxRequest>,
    ) -> ServiceResult<v1::OperationResponse> {
        let request = request.to_owned_message();
        let sandbox = self.find(&request.sandbox)?;
        if is_slow(&sandbox.name) {
            let kind = v1::OperationKind::Delete;
            return Response::ok(self.slow(kind, sandbox, &request.options).await);
        }
        self.state().sandboxes.retain(|it| it.id != sandbox.id);
        self.changed();
        Response::ok(self.ended(
            v1::OperationKind::Delete,
            sandbox,
            &request.options,
            done(v1::Achieved::Done),
        ))
    }

    async fn watch_sandboxes(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::WatchSandboxesRequest>,
    ) -> ServiceResult<ServiceStream<v1::WatchSandboxesResponse>> {
        let wanted = request.to_owned_message().sandbox;
        self.state().waiting += 1;
        let fake = self.clone();
        let changes =
            futures::stream::unfold((self.changes(), true), |(mut changes, first)| async move {
                if !first {
                    changes.changed().await.ok()?;
                }
                changes.mark_unchanged();
                Some(((), (changes, false)))
            });
        let stream = changes.map(move |()| {
            let sandbox = fake.find(&wanted)?;
            Ok::<_, ConnectError>(v1::WatchSandboxesResponse {
                sandbox: sandbox.into(),
                synced: false,
            })
        });
        Response::ok(Box::pin(stream))
    }
}

impl v1::OperationService for Fake {
    async fn get_operation(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::GetOperationRequest>,
    ) -> ServiceResult<v1::GetOperationResponse> {
        let id = request.to_owned_message().id;
        let found = self
            .state()
            .operations
            .iter()
            .find(|it| it.id == id)
            .cloned();
        Response::ok(v1::GetOperationResponse {
            operation: found.into(),
        })
    }

    async fn list_operations(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListOperationsRequest>,
    ) -> ServiceResult<v1::ListOperationsResponse> {
        Response::ok(v1::ListOperationsResponse {
            operations: self.state().operations.iter().rev().cloned().collect(),
            ..Default::default()
        })
    }

    async fn wait_operation(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::WaitOperationRequest>,
    ) -> ServiceResult<v1::WaitOperationResponse> {
        let id = request.to_owned_message().id;
        let found = self
            .state()
            .operations
            .iter()
            .find(|it| it.id == id)
            .cloned();
        if found.as_ref().is_some_and(|it| !it.outcome.is_set()) {
            self.state().waiting += 1;
            std::future::pending::<()>().await;
        }
        Response::ok(v1::WaitOperationResponse {
            operation: found.into(),
        })
    }
}

impl v1::GatewayService for Fake {
    async fn get_gateway(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::GetGatewayRequest>,
    ) -> ServiceResult<v1::GetGatewayResponse> {
        Response::ok(v1::GetGatewayResponse {
            gateway_id: "fake".into(),
            ..Default::default()
        })
    }

    async fn drain_gateway(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::DrainGatewayRequest>,
    ) -> ServiceResult<v1::DrainGatewayResponse> {
        Response::ok(v1::DrainGatewayResponse::default())
    }
}

impl v1::DriverService for Fake {
    async fn list_drivers(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListDriversRequest>,
    ) -> ServiceResult<v1::ListDriversResponse> {
        Response::ok(v1::ListDriversResponse {
            drivers: vec![v1::Driver {
                name: "fake".into(),
                version: "1".into(),
                is_default: true,
                ..Default::default()
            }],
        })
    }
}

fn name_ref(name: &str) -> v1::SandboxRef {
    v1::SandboxRef {
        by: Some(v1::__buffa::oneof::sandbox_ref::By::Name(name.to_owned())),
    }
}
