//! The gateway itself, and its drivers.

use std::time::Duration;

use buffa::MessageField;
use connectrpc::{Encodable, RequestContext, Response, ServiceRequest, ServiceResult};
use overwinter_api::v1;
use overwinter_store::OperationFilter;

use super::{Api, ApiError, convert};
use crate::reconciler::Registered;

const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Unfinished operations named in an answer.
const NAMED: usize = 1_000;

impl Api {
    /// Takes nothing new, and waits for what runs. Answers what did not end; each is at a recorded
    /// step.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub async fn drain(&self, time: Duration) -> Result<Vec<String>, ApiError> {
        self.start_draining();
        tracing::info!("draining: nothing new is admitted");
        let tasks = &self.reconciler.tasks;
        tasks.close();
        // Late or not, what is unfinished is what the records say.
        let _ = self.reconciler.ports.within(time, tasks.wait()).await;
        self.reconciler.save_learnt().await;
        let unfinished = self
            .reconciler
            .store
            .operations(OperationFilter {
                unfinished_only: true,
                limit: NAMED,
                ..OperationFilter::default()
            })
            .await?;
        Ok(unfinished
            .iter()
            .map(|operation| operation.id.to_string())
            .collect())
    }
}

impl v1::GatewayService for Api {
    async fn get_gateway<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, v1::GetGatewayRequest>,
    ) -> ServiceResult<impl Encodable<v1::GetGatewayResponse> + Send + use<'a>> {
        let store = &self.reconciler.store;
        let meta = store.meta();
        let stats = store.stats();
        let unfinished = store
            .operations(OperationFilter {
                unfinished_only: true,
                limit: NAMED,
                ..OperationFilter::default()
            })
            .await
            .map_err(ApiError::from)?;
        let sandboxes = store.count_by_phase(None).await.map_err(ApiError::from)?;
        Response::ok(v1::GetGatewayResponse {
            gateway_id: meta.gateway.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema_version: meta.schema,
            epoch: meta.epoch,
            draining: self.is_draining(),
            uptime: MessageField::some(convert::duration(self.reconciler.ports.clock.monotonic())),
            sandboxes: sandboxes.into_iter().collect(),
            unfinished_operations: unfinished.len() as u64,
            debts: store.debt_count(None).await.map_err(ApiError::from)?,
            attached_supervisors: self.reconciler.hub.attached(),
            store_transactions: stats.transactions,
            store_commits: stats.commits,
            resident_bytes: resident_bytes(),
        })
    }

    async fn drain_gateway<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, v1::DrainGatewayRequest>,
    ) -> ServiceResult<impl Encodable<v1::DrainGatewayResponse> + Send + use<'a>> {
        let time = match request.to_owned_message().timeout.as_option() {
            Some(time) => convert::to_duration(time, "timeout")?,
            None => DRAIN_TIME,
        };
        let unfinished_operation_ids = self.drain(time).await?;
        Response::ok(v1::DrainGatewayResponse {
            unfinished_operation_ids,
        })
    }
}

impl v1::DriverService for Api {
    async fn list_drivers<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, v1::ListDriversRequest>,
    ) -> ServiceResult<impl Encodable<v1::ListDriversResponse> + Send + use<'a>> {
        let drivers = &self.reconciler.drivers;
        let default = drivers.default_name();
        let asked = drivers.iter().map(Registered::describe);
        let described = futures::future::join_all(asked).await;
        let mut listed: Vec<v1::Driver> = described
            .iter()
            .map(|it| convert::driver(it, default == Some(it.name.as_str())))
            .collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Response::ok(v1::ListDriversResponse { drivers: listed })
    }
}

/// Of this process, as the kernel counts it; 0 where it does not say.
fn resident_bytes() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else {
        return 0;
    };
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
