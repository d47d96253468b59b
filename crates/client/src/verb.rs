//! The verbs: create, suspend, resume, start, delete. Each can be accepted (its intent is durable
//! and the gateway completes it) or waited for.

use std::time::{Duration, Instant};

use buffa::MessageField;
use overwinter_api::v1;

use crate::client::{Client, repeatable};
use crate::error::Result;
use crate::operation::{Operation, WAIT_SLICE};
use crate::policy::Policy;
use crate::types::{Achieved, Depth, Disposition, Sandbox, SandboxRef};

/// A verb that was admitted.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(transparent)]
pub struct Accepted(v1::OperationResponse);

impl Accepted {
    /// The operation; `None` when there was nothing to do.
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation.as_option().cloned().map(Operation)
    }

    /// The sandbox as it stood when the answer was made.
    pub fn sandbox(&self) -> Sandbox {
        Sandbox((*self.0.sandbox).clone())
    }

    /// How it was admitted.
    pub fn disposition(&self) -> Disposition {
        self.0.disposition.into()
    }

    /// The whole message.
    pub fn raw(&self) -> &v1::OperationResponse {
        &self.0
    }
}

/// A verb whose operation has ended well.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Done {
    /// The operation; `None` when there was nothing to do.
    pub operation: Option<Operation>,
    /// The sandbox as it stood at the end.
    pub sandbox: Sandbox,
    /// How the verb was admitted.
    pub disposition: Disposition,
    /// What was brought back; [`Achieved::Done`] when there was nothing to do.
    pub achieved: Achieved,
}

/// Builders of verbs differ in a request type and a method; the rest is the same.
macro_rules! verb {
    ($(#[$doc:meta])* $name:ident, $request:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use]
        pub struct $name {
            client: Client,
            request: v1::$request,
            limit: Option<Duration>,
        }

        impl $name {
            fn new(client: &Client, mut request: v1::$request) -> Self {
                request.options = MessageField::some(v1::WriteOptions {
                    // So that repeating it after a broken connection is safe.
                    idempotency_key: uuid::Uuid::new_v4().to_string(),
                    ..Default::default()
                });
                Self { client: client.clone(), request, limit: None }
            }

            fn options(&mut self) -> &mut v1::WriteOptions {
                self.request.options.get_or_insert_default()
            }

            /// The key under which a repetition is the same call, instead of a random one: at most
            /// once within 24 h, also across restarts of the caller.
            pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
                self.options().idempotency_key = key.into();
                self
            }

            /// Who asks, for the records.
            pub fn requester(mut self, requester: impl Into<String>) -> Self {
                self.options().requester = requester.into();
                self
            }

            /// How long [`wait`](Self::wait) waits at most; without it, as long as it takes. The
            /// operation goes on when the limit has passed.
            pub fn limit(mut self, limit: Duration) -> Self {
                self.limit = Some(limit);
                self
            }

            /// Sends it and answers as soon as it has been admitted.
            ///
            /// # Errors
            /// When it was refused, with the reason.
            pub async fn accept(mut self) -> Result<Accepted> {
                self.options().wait = MessageField::none();
                self.call().await
            }

            /// Sends it and waits until its operation has ended.
            ///
            /// # Errors
            /// When it was refused, failed, or was superseded or turned back, with the reason; and
            /// [`WAIT_TIMEOUT`](crate::reason::WAIT_TIMEOUT) when the limit passed.
            pub async fn wait(mut self) -> Result<Done> {
                let until = self.limit.map(|limit| Instant::now() + limit);
                let slice = self.limit.unwrap_or(WAIT_SLICE).min(WAIT_SLICE);
                self.options().wait =
                    buffa_types::google::protobuf::Duration::from(slice).into();
                let client = self.client.clone();
                let answer = self.call().await?;
                finish(&client, answer, until).await
            }

            async fn call(self) -> Result<Accepted> {
                let answer =
                    repeatable(|| self.client.rpc.sandboxes.$method(self.request.clone())).await?;
                Ok(Accepted(answer.into_owned()))
            }
        }
    };
}

/// Waits on where one call's wait was too short, then reads the outcome.
async fn finish(client: &Client, answer: Accepted, until: Option<Instant>) -> Result<Done> {
    let disposition = answer.disposition();
    let Some(mut operation) = answer.operation() else {
        return Ok(Done {
            operation: None,
            sandbox: answer.sandbox(),
            disposition,
            achieved: Achieved::Done,
        });
    };
    let mut sandbox = answer.sandbox();
    if operation.outcome().is_none() {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        operation = client.wait_operation(operation.id(), left).await?;
        // A record that is gone by now was deleted: what the answer held is the last of it.
        if operation.outcome().is_some() && !sandbox.id().is_empty() {
            match client.get(&sandbox).await {
                Ok(now) => sandbox = now,
                Err(error) if error.code() == crate::Code::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    let achieved = operation.achieved()?;
    Ok(Done {
        operation: Some(operation),
        sandbox,
        disposition,
        achieved,
    })
}

verb!(
    /// A sandbox being asked for; see [`Client::create`].
    Create, CreateSandboxRequest, create_sandbox
);
verb!(
    /// A suspend being asked for; see [`Client::suspend`].
    Suspend, SuspendSandboxRequest, suspend_sandbox
);
verb!(
    /// A resume being asked for; see [`Client::resume`].
    Resume, ResumeSandboxRequest, resume_sandbox
);
verb!(
    /// A cold start being asked for; see [`Client::start`].
    Start, StartSandboxRequest, start_sandbox
);
verb!(
    /// A delete being asked for; see [`Client::delete`].
    Delete, DeleteSandboxRequest, delete_sandbox
);

impl Client {
    /// Makes a sandbox.
    pub fn create(&self) -> Create {
        Create::new(self, v1::CreateSandboxRequest::default())
    }

    /// Puts a sandbox to sleep. Without a depth: the policy's, else `stop`; on one that sleeps
    /// already, nothing.
    pub fn suspend(&self, sandbox: impl Into<SandboxRef>) -> Suspend {
        let sandbox = sandbox.into().message().into();
        Suspend::new(
            self,
            v1::SuspendSandboxRequest {
                sandbox,
                ..Default::default()
            },
        )
    }

    /// Restores exactly what was retained, or fails with the reason.
    pub fn resume(&self, sandbox: impl Into<SandboxRef>) -> Resume {
        let sandbox = sandbox.into().message().into();
        Resume::new(
            self,
            v1::ResumeSandboxRequest {
                sandbox,
                ..Default::default()
            },
        )
    }

    /// Starts a sandbox cold on its storage, discarding memory that was retained.
    pub fn start(&self, sandbox: impl Into<SandboxRef>) -> Start {
        let sandbox = sandbox.into().message().into();
        Start::new(
            self,
            v1::StartSandboxRequest {
                sandbox,
                ..Default::default()
            },
        )
    }

    /// Removes a sandbox: compute, storage, artifacts and secrets. Admitted in every phase.
    pub fn delete(&self, sandbox: impl Into<SandboxRef>) -> Delete {
        let sandbox = sandbox.into().message().into();
        Delete::new(
            self,
            v1::DeleteSandboxRequest {
                sandbox,
                ..Default::default()
            },
        )
    }
}

impl Create {
    /// Its name: a DNS label that is no UUID. Without one, one is made up.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.request.name = name.into();
        self
    }

    /// The driver's name; without it the gateway's default.
    pub fn driver(mut self, driver: impl Into<String>) -> Self {
        self.spec().driver = driver.into();
        self
    }

    /// A folder, a rootfs tar, or a name that the driver knows.
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.spec().image = image.into();
        self
    }

    /// The main process, started anew at each cold start.
    pub fn main(mut self, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.spec().main = command.into_iter().map(Into::into).collect();
        self
    }

    /// What it reaches: "none", which is the default, "internet" or "host". [`Client::drivers`] says which the
    /// driver has.
    pub fn network(mut self, network: impl Into<String>) -> Self {
        self.spec().network = network.into();
        self
    }

    /// One of the driver's runtimes by its program's name, like "runsc"; without it the driver's
    /// default.
    pub fn runtime(mut self, runtime: impl Into<String>) -> Self {
        self.spec().runtime = runtime.into();
        self
    }

    /// A variable of every process inside.
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config().env.insert(key.into(), value.into());
        self
    }

    /// A label to find it by.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(key.into(), value.into());
        self
    }

    /// How much CPU it gets, in thousandths of one; 0: no limit.
    pub fn cpu_millis(mut self, millis: u32) -> Self {
        self.resources().cpu_millis = millis;
        self
    }

    /// How much memory it gets, in bytes; 0: no limit.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.resources().memory_bytes = bytes;
        self
    }

    /// How many processes and threads it gets; 0: the driver's default.
    pub fn pids(mut self, pids: u32) -> Self {
        self.resources().pids = pids;
        self
    }

    /// How much disk it gets, in bytes; refused where the filesystem has no quotas. 0: no limit.
    pub fn disk_bytes(mut self, bytes: u64) -> Self {
        self.resources().disk_bytes = bytes;
        self
    }

    /// When and how it sleeps.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.config().policy = policy.0.into();
        self
    }

    fn spec(&mut self) -> &mut v1::SandboxSpec {
        self.request.spec.get_or_insert_default()
    }

    fn resources(&mut self) -> &mut v1::Resources {
        self.spec().resources.get_or_insert_default()
    }

    fn config(&mut self) -> &mut v1::SandboxConfig {
        self.request.config.get_or_insert_default()
    }
}

impl Suspend {
    /// How deep.
    pub fn depth(mut self, depth: Depth) -> Self {
        self.request.depth = depth.message().into();
        self
    }

    /// With [`Depth::Freeze`]: gives the memory back, as far as that goes. What came of it is in the
    /// sandbox's retained state, and in [`Operation::remarks`].
    pub fn reclaim(mut self, yes: bool) -> Self {
        self.request.reclaim = yes;
        self
    }
}

impl Resume {
    /// When what was retained cannot be restored, goes on with a cold start on the same storage;
    /// [`Done::achieved`] says which it was.
    pub fn restart_if_restore_fails(mut self, yes: bool) -> Self {
        self.request.restart_if_restore_fails = yes;
        self
    }

    /// Brings in what a freeze has given back before anything runs, instead of page by page as it is
    /// used.
    pub fn prefetch(mut self, yes: bool) -> Self {
        self.request.prefetch = yes;
        self
    }
}

impl Delete {
    /// The backend is gone for good: writes the tombstone and lists what may remain, in
    /// [`Operation::remarks`].
    pub fn abandon(mut self, yes: bool) -> Self {
        self.request.abandon = yes;
        self
    }
}
