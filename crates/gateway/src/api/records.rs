//! Reading records, and what may change of them besides the lifecycle: lists, updates, watches. None of it
//! wakes anything.

use std::collections::BTreeMap;

use buffa::MessageField;
use connectrpc::ConnectError;
use futures::{StreamExt, stream};
use overwinter_api::v1;
use overwinter_lifecycle::Phase;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_store::{ListFilter, UpdateConfig};
use uuid::Uuid;

use super::convert::{self, Live};
use super::{Api, ApiError, TENANT, checks};

const PAGE: u32 = 100;
const LARGEST_PAGE: u32 = 1_000;

impl Api {
    pub(super) async fn list(
        &self,
        request: v1::ListSandboxesRequest,
    ) -> Result<v1::ListSandboxesResponse, ApiError> {
        let size = match request.page_size {
            0 => PAGE,
            size => size.min(LARGEST_PAGE),
        };
        let after = if request.page_token.is_empty() {
            None
        } else {
            let token = Uuid::parse_str(&request.page_token)
                .map_err(|_| ApiError::invalid("page_token: not one that a list has given"))?;
            Some(SandboxId(token))
        };
        let asked = !request.phases.is_empty();
        let phases: Vec<Phase> = request
            .phases
            .into_iter()
            .filter_map(convert::to_phase)
            .collect();
        if asked && phases.is_empty() {
            return Err(ApiError::invalid("phases: none that this release knows"));
        }
        let found = self
            .reconciler
            .store
            .list(ListFilter {
                tenant: Some(TENANT.to_owned()),
                labels: request.labels.into_iter().collect(),
                phases,
                after,
                // One more than is shown tells whether there is another page.
                limit: size as usize + 1,
                tombstones: false,
            })
            .await?;
        let more = found.len() > size as usize;
        let shown = &found[..found.len().min(size as usize)];
        let next_page_token = match shown.last() {
            Some(last) if more => last.id.to_string(),
            Some(_) | None => String::new(),
        };
        let sandboxes = shown
            .iter()
            .map(|sandbox| {
                let slot = self.reconciler.hub.find(sandbox.id);
                let live = Live {
                    attached: slot.as_ref().is_some_and(|slot| slot.is_attached()),
                    debts: 0,
                    open_calls: slot.as_ref().map_or(0, |slot| slot.open_calls()),
                };
                convert::sandbox(sandbox, live)
            })
            .collect();
        Ok(v1::ListSandboxesResponse {
            sandboxes,
            next_page_token,
        })
    }

    pub(super) async fn update(
        &self,
        request: v1::UpdateSandboxRequest,
    ) -> Result<v1::Sandbox, ApiError> {
        let sandbox = self.sandbox(request.sandbox.into_option()).await?;
        let merged = |now: &BTreeMap<String, String>, changes: BTreeMap<String, String>| {
            let mut merged = now.clone();
            for (key, value) in changes {
                if value.is_empty() {
                    merged.remove(&key);
                } else {
                    merged.insert(key, value);
                }
            }
            merged
        };
        let labels: BTreeMap<_, _> = request.labels.into_iter().collect();
        let env: BTreeMap<_, _> = request.env.into_iter().collect();
        // What is to be removed as well: a name that cannot be was not meant.
        checks::labels(&labels)?;
        let env = checks::env(env)?;
        let update = UpdateConfig {
            labels: (!labels.is_empty()).then(|| merged(&sandbox.labels, labels)),
            env: match env.is_empty() {
                true => None,
                false => Some(merged(&sandbox.config.env, env)),
            },
            policy: request
                .policy
                .into_option()
                .map(convert::to_policy)
                .transpose()?,
            owner: if request.owner.is_empty() {
                "client".to_owned()
            } else {
                request.owner
            },
            // What was merged was read: another write in between must not be lost.
            expected_version: Some(request.config_version.unwrap_or(sandbox.config.version)),
        };
        let now = self.reconciler.ports.clock.wall();
        let sandbox = self
            .reconciler
            .store
            .update(sandbox.id, update, now)
            .await?;
        self.show(&sandbox).await
    }

    pub(super) fn watch(
        self,
        after: u64,
        only: Option<SandboxId>,
    ) -> impl futures::Stream<Item = Result<v1::WatchSandboxesResponse, ConnectError>> + Send {
        const PAGE: usize = 256;
        struct Cursor {
            seq: u64,
            synced: bool,
            newest: tokio::sync::watch::Receiver<u64>,
        }
        let start = Cursor {
            seq: after,
            synced: false,
            newest: self.reconciler.store.subscribe(),
        };
        stream::unfold((self, start), move |(api, mut cursor)| async move {
            loop {
                cursor.newest.borrow_and_update();
                let page = match api.reconciler.store.changes_since(cursor.seq, PAGE).await {
                    Ok(page) => page,
                    Err(error) => {
                        let error = ConnectError::from(ApiError::from(error));
                        return Some((vec![Err(error)], (api, cursor)));
                    }
                };
                if page.gap && cursor.seq > 0 {
                    let gone = ConnectError::from(ApiError::revision_gone(cursor.seq));
                    return Some((vec![Err(gone)], (api, cursor)));
                }
                cursor.seq = page.next;
                let mut messages = Vec::new();
                let full = page.changes.len() >= PAGE;
                for (revision, sandbox) in page.changes {
                    if only.is_some_and(|only| only != sandbox.id) || sandbox.tenant != TENANT {
                        continue;
                    }
                    messages.push(match api.show(&sandbox).await {
                        Ok(shown) => Ok(v1::WatchSandboxesResponse {
                            sandbox: MessageField::some(v1::Sandbox { revision, ..shown }),
                            synced: false,
                        }),
                        Err(error) => Err(error.into()),
                    });
                }
                if !full && !cursor.synced {
                    cursor.synced = true;
                    messages.push(Ok(v1::WatchSandboxesResponse {
                        sandbox: MessageField::none(),
                        synced: true,
                    }));
                }
                if !messages.is_empty() {
                    return Some((messages, (api, cursor)));
                }
                if !full && cursor.newest.changed().await.is_err() {
                    return None;
                }
            }
        })
        .flat_map(stream::iter)
    }
}
