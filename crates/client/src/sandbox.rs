//! Reading records, changing their labels and configuration, and watching them.

use std::collections::VecDeque;

use futures::{Stream, TryStreamExt, stream};
use overwinter_api::v1;

use crate::client::{Client, repeatable};
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::transport::Transport;
use crate::types::{Phase, Sandbox, SandboxRef};

const PAGE: u32 = 500;

impl Client {
    /// One sandbox's record. Never wakes it.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn get(&self, sandbox: impl Into<SandboxRef>) -> Result<Sandbox> {
        let request = v1::GetSandboxRequest {
            sandbox: sandbox.into().message().into(),
        };
        let answer = repeatable(|| self.rpc.sandboxes.get_sandbox(request.clone())).await?;
        answer
            .into_owned()
            .sandbox
            .into_option()
            .map(Sandbox)
            .ok_or_else(|| Error::protocol("no sandbox"))
    }

    /// Sandboxes: all that live, until the builder narrows it.
    pub fn list(&self) -> SandboxList {
        SandboxList {
            client: self.clone(),
            request: v1::ListSandboxesRequest {
                page_size: PAGE,
                ..Default::default()
            },
        }
    }

    /// Changes labels and configuration; not the spec, not the lifecycle.
    pub fn update(&self, sandbox: impl Into<SandboxRef>) -> Update {
        Update {
            client: self.clone(),
            request: v1::UpdateSandboxRequest {
                sandbox: sandbox.into().message().into(),
                ..Default::default()
            },
        }
    }

    /// What changes after `after_revision` (0: everything as it stands first), of one sandbox or of
    /// all. Never wakes anything.
    ///
    /// # Errors
    /// `NotFound` when `sandbox` is not there.
    pub async fn watch(&self, sandbox: Option<SandboxRef>, after_revision: u64) -> Result<Watch> {
        let request = v1::WatchSandboxesRequest {
            after_revision,
            sandbox: sandbox.map(|it| it.message()).into(),
        };
        self.watch_raw(request).await
    }

    pub(crate) async fn watch_raw(&self, request: v1::WatchSandboxesRequest) -> Result<Watch> {
        let stream = self.rpc.sandboxes.watch_sandboxes(request).await?;
        Ok(Watch { stream })
    }
}

/// A list being asked for; see [`Client::list`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SandboxList {
    client: Client,
    request: v1::ListSandboxesRequest,
}

impl SandboxList {
    /// Only those that carry this label, and all others that are asked for.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(key.into(), value.into());
        self
    }

    /// Only those in this phase, or in another that is asked for.
    pub fn phase(mut self, phase: Phase) -> Self {
        self.request.phases.push(phase.message().into());
        self
    }

    /// How many a page holds, at most 1,000.
    pub fn page_size(mut self, size: u32) -> Self {
        self.request.page_size = size;
        self
    }

    /// The records; further pages are fetched as the stream is read.
    pub fn stream(self) -> impl Stream<Item = Result<Sandbox>> + Send + 'static {
        let Self { client, request } = self;
        let pages = stream::try_unfold(Some(request), move |request| {
            let client = client.clone();
            async move {
                let Some(mut request) = request else {
                    return Ok::<_, Error>(None);
                };
                let page = repeatable(|| client.rpc.sandboxes.list_sandboxes(request.clone()))
                    .await?
                    .into_owned();
                request.page_token = page.next_page_token;
                let next = Some(request).filter(|it| !it.page_token.is_empty());
                let items: VecDeque<_> = page.sandboxes.into_iter().map(Sandbox).collect();
                Ok(Some((stream::iter(items.into_iter().map(Ok)), next)))
            }
        });
        Box::pin(pages.try_flatten())
    }

    /// All of them.
    ///
    /// # Errors
    /// Any that a page failed with.
    pub async fn all(self) -> Result<Vec<Sandbox>> {
        self.stream().try_collect().await
    }
}

/// An update being built; see [`Client::update`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Update {
    client: Client,
    request: v1::UpdateSandboxRequest,
}

impl Update {
    /// Sets a label; an empty value removes it.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(key.into(), value.into());
        self
    }

    /// Sets a variable for processes started from now on; an empty value removes it.
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(key.into(), value.into());
        self
    }

    /// Replaces the policy as a whole.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.request.policy = policy.0.into();
        self
    }

    /// Refused unless the configuration has this version.
    pub fn config_version(mut self, version: u64) -> Self {
        self.request.config_version = Some(version);
        self
    }

    /// Who writes this version, for the record.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.request.owner = owner.into();
        self
    }

    /// Sends it; answers with the new record. Not repeated by itself.
    ///
    /// # Errors
    /// `NotFound`; `Aborted` when the configuration has another version.
    pub async fn send(self) -> Result<Sandbox> {
        let answer = self
            .client
            .rpc
            .sandboxes
            .update_sandbox(self.request)
            .await?;
        answer
            .into_owned()
            .sandbox
            .into_option()
            .map(Sandbox)
            .ok_or_else(|| Error::protocol("no sandbox"))
    }
}

/// Changes as they happen; see [`Client::watch`]. Dropping it ends the watch.
pub struct Watch {
    stream: connectrpc::client::ServerStream<
        <Transport as connectrpc::client::ClientTransport>::ResponseBody,
        v1::__buffa::view::WatchSandboxesResponseView<'static>,
    >,
}

/// What a watch tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// A record, as a whole; a deleted one comes as a tombstone.
    Sandbox(Box<Sandbox>),
    /// All that stood when the watch began has been told.
    Synced,
}

impl Watch {
    /// The next change; `None` when the gateway ended the watch.
    ///
    /// # Errors
    /// When the connection broke; watch again from the last revision seen.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            let message = self.stream.message().await;
            let Some(message) = message.map_err(Error::from)? else {
                return Ok(None);
            };
            let message: v1::WatchSandboxesResponse = message.to_owned_message();
            if let Some(sandbox) = message.sandbox.into_option() {
                return Ok(Some(Change::Sandbox(Box::new(Sandbox(sandbox)))));
            }
            if message.synced {
                return Ok(Some(Change::Synced));
            }
        }
    }

    /// Waits until the sandbox that is watched makes `is_it` true.
    ///
    /// # Errors
    /// As [`next`](Self::next); `None` when the watch ended first.
    pub async fn until(
        &mut self,
        mut is_it: impl FnMut(&Sandbox) -> bool,
    ) -> Result<Option<Sandbox>> {
        while let Some(change) = self.next().await? {
            if let Change::Sandbox(sandbox) = change
                && is_it(&sandbox)
            {
                return Ok(Some(*sandbox));
            }
        }
        Ok(None)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
