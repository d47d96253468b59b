//! The steps of a suspension, as the gateway takes them.

use std::sync::Arc;
use std::time::Duration;

use overwinter_api::supervisor as wire;

use super::Service;
use crate::error::Refusal;
use crate::terminate::terminate;

impl Service {
    /// Closes the gate, waits for the writes in flight, runs the hook.
    pub(super) async fn close_gate(&self, request: wire::QuiesceRequest) -> wire::QuiesceResponse {
        let sandbox = &self.sandbox;
        sandbox.gate.close();
        sandbox.gate.settle_writes().await;
        let timeout = Duration::from_millis(request.hook_timeout_ms);
        let hook = sandbox
            .gate
            .run_hook(&sandbox.table, request.hook, timeout)
            .await;
        wire::QuiesceResponse {
            live_processes: sandbox.table.live().len() as u32,
            hook: hook.into(),
        }
    }

    /// Tells who is alive, and ends this connection with that answer.
    pub(super) fn leave(&self) -> wire::DetachResponse {
        let live = self.sandbox.table.live();
        self.detach.send_replace(true);
        wire::DetachResponse {
            live_process_ids: live
                .iter()
                .map(|process| process.description.id.clone())
                .collect(),
        }
    }

    /// Ends everything inside. Goes on when the caller goes away: what has begun to end cannot be
    /// called back.
    pub(super) async fn end_everything(
        &self,
        grace_ms: u64,
    ) -> Result<wire::TerminateResponse, Refusal> {
        let sandbox = Arc::clone(&self.sandbox);
        sandbox.gate.close();
        let ending = tokio::spawn(async move {
            sandbox.gate.settle_writes().await;
            let grace = Duration::from_millis(grace_ms);
            terminate(&sandbox.table, sandbox.config.pid1, grace).await
        });
        let results = ending.await.map_err(|_| Refusal::Worker)?;
        Ok(wire::TerminateResponse { results })
    }
}
