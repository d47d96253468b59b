//! The verbs, and reading records.

use std::time::Duration;

use buffa::MessageField;
use connectrpc::{
    Encodable, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt;
use overwinter_api::v1;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::operation::{Operation, Verb};
use overwinter_lifecycle::record::Sandbox;
use overwinter_lifecycle::{Depth, Name, Phase};
use overwinter_store::{
    Accept, AcceptError, Accepted, Disposition, Durability, Idempotency, NewSandbox, StoreError,
};
use sha2::{Digest, Sha256};

use super::convert::{self, Live};
use super::{Api, ApiError, TENANT, checks, modes};

/// How long an idempotency key is remembered.
const KEY_LIFE_MS: u64 = 24 * 60 * 60 * 1_000;
/// The longest that a call waits for an outcome; a client that wants more asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

impl Api {
    pub(super) async fn show(&self, sandbox: &Sandbox) -> Result<v1::Sandbox, ApiError> {
        let slot = self.reconciler.hub.find(sandbox.id);
        let debts = self.reconciler.store.debt_count(Some(sandbox.id)).await?;
        let live = Live {
            attached: slot.as_ref().is_some_and(|slot| slot.is_attached()),
            debts: u32::try_from(debts).unwrap_or(u32::MAX),
            open_calls: slot.as_ref().map_or(0, |slot| slot.open_calls()),
        };
        Ok(convert::sandbox(sandbox, live))
    }

    /// What the driver does not offer is refused before anything is written.
    fn check_depth(
        &self,
        sandbox: &Sandbox,
        asked: Option<Depth>,
        reclaim: bool,
    ) -> Result<(), ApiError> {
        let depth = match (asked, sandbox.phase()) {
            (Some(depth), _) => depth,
            (None, Phase::Suspended(_) | Phase::Suspending(_)) => return Ok(()),
            (None, _) => sandbox.config.policy.default_depth,
        };
        let Some(registered) = self.reconciler.drivers.get(&sandbox.spec.driver) else {
            return Err(no_such_driver(&sandbox.spec.driver));
        };
        modes::check(&registered.description(), depth, reclaim)
    }

    async fn verb(
        &self,
        sandbox: SandboxId,
        request: Request,
        options: v1::WriteOptions,
        method: &'static str,
        body_hash: [u8; 32],
    ) -> Result<v1::OperationResponse, ApiError> {
        let wait = wait_time(&options)?;
        let store = self.reconciler.store.clone();
        let accept = Accept {
            sandbox,
            request,
            durability: match request {
                // The intent of its effect waits for the disk, and whoever is told is told of its end.
                Request::Suspend { .. } if !wait.is_zero() => Durability::Soon,
                Request::Suspend { .. }
                | Request::Resume { .. }
                | Request::Start
                | Request::Delete { .. } => Durability::Before,
            },
            operation: self.reconciler.ports.ids.operation(),
            requester: requester(&options),
            deadlines: self.reconciler.deadlines,
            idempotency: idempotency(&options, method, body_hash),
            now: self.reconciler.ports.clock.wall(),
        };
        self.carry_out(async move { store.accept(accept).await }, wait)
            .await
    }

    /// The answer to an earlier call with the same key. Asked before a name is resolved: by now it may
    /// stand for nothing, or for another sandbox.
    async fn replayed(
        &self,
        options: &v1::WriteOptions,
        method: &'static str,
        body_hash: [u8; 32],
    ) -> Result<Option<v1::OperationResponse>, ApiError> {
        let Some(key) = idempotency(options, method, body_hash) else {
            return Ok(None);
        };
        let wait = wait_time(options)?;
        let now = self.reconciler.ports.clock.wall();
        match self.reconciler.store.replay(TENANT, &key, now).await? {
            Some(earlier) => Ok(Some(
                self.carry_out(async move { Ok(earlier) }, wait).await?,
            )),
            None => Ok(None),
        }
    }

    /// Has a verb accepted, gives what has begun its owner, and waits for it as long as was asked.
    async fn carry_out(
        &self,
        accept: impl Future<Output = Result<Accepted, AcceptError>> + Send + 'static,
        wait: Duration,
    ) -> Result<v1::OperationResponse, ApiError> {
        let reconciler = self.reconciler.clone();
        // In a task of the gateway's own: this future goes with its client, who may be gone between
        // the commit and what follows, and would leave an operation that nobody carries out.
        let accepted = self.reconciler.tasks.spawn(async move {
            let accepted = accept.await?;
            for id in &accepted.superseded {
                if let Some(ended) = reconciler.store.operation(*id).await? {
                    reconciler.waiters.ended(vec![ended]);
                }
            }
            let running = accepted.sandbox.running.as_ref();
            if running.is_some_and(|op| op.stopping.is_some())
                && let Some(slot) = reconciler.hub.find(accepted.sandbox.id)
            {
                slot.note_stop_request();
            }
            // Registered before the owner starts: its end is not looked for in the store.
            let ended = match &accepted.operation {
                Some(operation) if accepted.begun && !wait.is_zero() => {
                    Some(reconciler.waiters.wait(operation.id))
                }
                Some(_) | None => None,
            };
            if accepted.begun && !overwinter_lifecycle::mutant!(OwnerOfClient) {
                reconciler.own(accepted.sandbox.clone());
            }
            reconciler.sync_soon();
            Ok::<_, ApiError>((accepted, ended))
        });
        let (accepted, ended) = accepted.await.map_err(|_| StoreError::Closed)??;
        if accepted.begun && overwinter_lifecycle::mutant!(OwnerOfClient) {
            self.reconciler.own(accepted.sandbox.clone());
        }
        let Accepted {
            disposition,
            operation,
            mut sandbox,
            superseded: _,
            begun: _,
        } = accepted;
        let disposition = match disposition {
            Disposition::Accepted => v1::Disposition::DISPOSITION_ACCEPTED,
            Disposition::Joined | Disposition::Replay => v1::Disposition::DISPOSITION_JOINED,
            Disposition::TurnedBack => v1::Disposition::DISPOSITION_TURNED_BACK,
            Disposition::Queued => v1::Disposition::DISPOSITION_QUEUED,
            Disposition::NoOp => v1::Disposition::DISPOSITION_NO_OP,
        };
        let id = sandbox.id;
        let operation = match operation {
            Some(operation) if !wait.is_zero() => {
                let operation = match ended {
                    Some(ended) => match self.reconciler.ports.within(wait, ended).await {
                        Ok(Ok(ended)) => std::sync::Arc::unwrap_or_clone(ended),
                        Ok(Err(_)) | Err(_) => {
                            self.reconciler.waiters.forget(operation.id);
                            self.reconciler.store.sync().await?;
                            self.operation(operation.id).await?.unwrap_or(operation)
                        }
                    },
                    None => self.wait(operation, wait).await?,
                };
                if let Some(now) = self.reconciler.store.get(id).await? {
                    sandbox = now;
                }
                Some(operation)
            }
            operation => operation,
        };
        Ok(v1::OperationResponse {
            operation: operation.as_ref().map(convert::operation).into(),
            sandbox: MessageField::some(self.show(&sandbox).await?),
            disposition: disposition.into(),
        })
    }
}

fn no_such_driver(name: &str) -> ApiError {
    ApiError::invalid(format!("driver: this gateway has none named {name:?}"))
}

fn requester(options: &v1::WriteOptions) -> String {
    if options.requester.is_empty() {
        "client".to_owned()
    } else {
        options.requester.clone()
    }
}

fn wait_time(options: &v1::WriteOptions) -> Result<Duration, ApiError> {
    match options.wait.as_option() {
        Some(time) => Ok(convert::to_duration(time, "options.wait")?.min(LONGEST_WAIT)),
        None => Ok(Duration::ZERO),
    }
}

fn idempotency(
    options: &v1::WriteOptions,
    method: &str,
    body_hash: [u8; 32],
) -> Option<Idempotency> {
    (!options.idempotency_key.is_empty()).then(|| Idempotency {
        method: method.to_owned(),
        key: options.idempotency_key.clone(),
        body_hash,
        life_ms: KEY_LIFE_MS,
    })
}

/// Of the request without its options: the key itself, and how long is waited, are no part of it.
/// Of its JSON with sorted keys: maps have no order of their own.
fn body_hash(request: &impl serde::Serialize) -> [u8; 32] {
    let canonical = serde_json::to_value(request).unwrap_or_default();
    Sha256::digest(canonical.to_string()).into()
}

macro_rules! options_of {
    ($request:ident) => {{
        let options = $request.options.take().unwrap_or_default();
        let hash = if options.idempotency_key.is_empty() {
            [0; 32]
        } else {
            body_hash(&$request)
        };
        (options, hash)
    }};
}

impl v1::SandboxService for Api {
    async fn create_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::CreateSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::OperationResponse> + Send + use<'a>> {
        self.check_admission()?;
        let mut request = request.to_owned_message();
        let (options, hash) = options_of!(request);
        Response::ok(self.create(request, options, hash).await?)
    }

    async fn get_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::GetSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::GetSandboxResponse> + Send + use<'a>> {
        let sandbox = self
            .sandbox(request.to_owned_message().sandbox.into_option())
            .await?;
        if overwinter_lifecycle::mutant!(ReadWakes) {
            let verb = Request::Resume {
                fallback: true,
                prefetch: false,
            };
            let options = v1::WriteOptions {
                requester: "a read".to_owned(),
                ..Default::default()
            };
            let _ = self
                .verb(sandbox.id, verb, options, "GetSandbox", [0; 32])
                .await;
        }
        let sandbox = MessageField::some(self.show(&sandbox).await?);
        Response::ok(v1::GetSandboxResponse { sandbox })
    }

    async fn list_sandboxes<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ListSandboxesRequest>,
    ) -> ServiceResult<impl Encodable<v1::ListSandboxesResponse> + Send + use<'a>> {
        Response::ok(self.list(request.to_owned_message()).await?)
    }

    async fn update_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::UpdateSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::UpdateSandboxResponse> + Send + use<'a>> {
        self.check_admission()?;
        let sandbox = self.update(request.to_owned_message()).await?;
        Response::ok(v1::UpdateSandboxResponse {
            sandbox: MessageField::some(sandbox),
        })
    }

    async fn suspend_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::SuspendSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::OperationResponse> + Send + use<'a>> {
        self.check_admission()?;
        let mut request = request.to_owned_message();
        let (options, hash) = options_of!(request);
        if let Some(earlier) = self.replayed(&options, "SuspendSandbox", hash).await? {
            return Response::ok(earlier);
        }
        let depth = convert::to_depth(request.depth)?;
        let sandbox = self.sandbox(request.sandbox.into_option()).await?;
        self.check_depth(&sandbox, depth, request.reclaim)?;
        let verb = Request::Suspend {
            depth,
            idle: false,
            reclaim: request.reclaim,
        };
        Response::ok(
            self.verb(sandbox.id, verb, options, "SuspendSandbox", hash)
                .await?,
        )
    }

    async fn resume_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::ResumeSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::OperationResponse> + Send + use<'a>> {
        self.check_admission()?;
        let mut request = request.to_owned_message();
        let (options, hash) = options_of!(request);
        if let Some(earlier) = self.replayed(&options, "ResumeSandbox", hash).await? {
            return Response::ok(earlier);
        }
        let id = self.sandbox(request.sandbox.into_option()).await?.id;
        let verb = Request::Resume {
            fallback: request.restart_if_restore_fails,
            prefetch: request.prefetch,
        };
        Response::ok(self.verb(id, verb, options, "ResumeSandbox", hash).await?)
    }

    async fn start_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::StartSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::OperationResponse> + Send + use<'a>> {
        self.check_admission()?;
        let mut request = request.to_owned_message();
        let (options, hash) = options_of!(request);
        if let Some(earlier) = self.replayed(&options, "StartSandbox", hash).await? {
            return Response::ok(earlier);
        }
        let id = self.sandbox(request.sandbox.into_option()).await?.id;
        Response::ok(
            self.verb(id, Request::Start, options, "StartSandbox", hash)
                .await?,
        )
    }

    async fn delete_sandbox<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::DeleteSandboxRequest>,
    ) -> ServiceResult<impl Encodable<v1::OperationResponse> + Send + use<'a>> {
        self.check_admission()?;
        let mut request = request.to_owned_message();
        let (options, hash) = options_of!(request);
        if let Some(earlier) = self.replayed(&options, "DeleteSandbox", hash).await? {
            return Response::ok(earlier);
        }
        let sandbox = self.sandbox(request.sandbox.into_option()).await?;
        let verb = Request::Delete {
            abandon: request.abandon,
        };
        let answer = self.verb(sandbox.id, verb, options, "DeleteSandbox", hash);
        match answer.await {
            // The delete that ended it, asked for again under its key, was answered above.
            Err(_) if sandbox.phase() == Phase::Tombstone => {
                Err(ApiError::no_such_sandbox(&sandbox.id.to_string()).into())
            }
            answer => Response::ok(answer?),
        }
    }

    async fn watch_sandboxes(
        &self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::WatchSandboxesRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<v1::WatchSandboxesResponse> + Send + use<>>>
    {
        let request = request.to_owned_message();
        let only = match request.sandbox.into_option() {
            Some(by) => Some(self.sandbox(Some(by)).await?.id),
            None => None,
        };
        Response::ok(self.clone().watch(request.after_revision, only).boxed())
    }
}

impl Api {
    async fn create(
        &self,
        request: v1::CreateSandboxRequest,
        options: v1::WriteOptions,
        hash: [u8; 32],
    ) -> Result<v1::OperationResponse, ApiError> {
        let wait = wait_time(&options)?;
        let id = self.reconciler.ports.ids.sandbox();
        let name = if request.name.is_empty() {
            made_up_name(id)
        } else {
            Name::parse(&request.name)
                .map_err(|bad| ApiError::invalid(format!("name {:?}: {bad}", request.name)))?
        };
        let drivers = &self.reconciler.drivers;
        let default = drivers.default_name().unwrap_or_default();
        let spec = convert::to_spec(request.spec.into_option().unwrap_or_default(), default);
        let Some(registered) = drivers.get(&spec.driver) else {
            return Err(no_such_driver(&spec.driver));
        };
        checks::resources(spec.resources)?;
        let description = registered.describe().await;
        // One that was asked for and would not hold is worse than none.
        if let Some((limit, why)) = description.unenforced_in(&spec.resources) {
            return Err(ApiError::unsupported(format!(
                "the driver {:?} cannot limit {}: {why}",
                spec.driver,
                limit.as_str()
            )));
        }
        let offered = description.offers(&spec.network, &spec.runtime);
        offered.map_err(|why| {
            ApiError::unsupported(format!("the driver {:?} does not offer {why}", spec.driver))
        })?;
        if spec.image.is_empty() {
            return Err(ApiError::invalid(
                "spec.image is missing (--image): a folder, a rootfs tar, or a name that the driver knows",
            ));
        }
        let labels = request.labels.into_iter().collect();
        checks::labels(&labels)?;
        let who = requester(&options);
        let config = convert::to_config(request.config.into_option().unwrap_or_default(), &who)?;
        let now = self.reconciler.ports.clock.wall();
        let mut sandbox = Sandbox::new(id, TENANT, name, spec, config, now);
        sandbox.labels = labels;
        let operation = Operation {
            deadlines: self.reconciler.deadlines,
            ..Operation::new(
                self.reconciler.ports.ids.operation(),
                id,
                Verb::Create,
                &who,
                now,
            )
        };
        let store = self.reconciler.store.clone();
        let new = NewSandbox {
            sandbox,
            operation,
            idempotency: idempotency(&options, "CreateSandbox", hash),
            now,
        };
        self.carry_out(async move { store.accept_create(new).await }, wait)
            .await
    }
}

/// A name for one that was given none: readable, and as unique as its id.
fn made_up_name(id: SandboxId) -> Name {
    let text = id.0.simple().to_string();
    let name = format!("sandbox-{}", &text[text.len() - 12..]);
    match Name::parse(&name) {
        Ok(name) => name,
        Err(bad) => unreachable!("hexadecimal digits are a name: {bad}"),
    }
}
