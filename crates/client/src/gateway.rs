//! The gateway itself and its drivers.

use std::time::Duration;

use overwinter_api::v1;

use crate::client::{Client, repeatable};
use crate::error::Result;

impl Client {
    /// What the gateway says of itself.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn gateway_status(&self) -> Result<v1::GetGatewayResponse> {
        let answer = repeatable(|| {
            self.rpc
                .gateway
                .get_gateway(v1::GetGatewayRequest::default())
        })
        .await?;
        Ok(answer.into_owned())
    }

    /// Stops admission and lets running operations end, or reach a recorded step, within `timeout`
    /// (`None`: 30 s). Answers with the ids of those that did not end.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn drain_gateway(&self, timeout: Option<Duration>) -> Result<Vec<String>> {
        let request = v1::DrainGatewayRequest {
            timeout: timeout
                .map(buffa_types::google::protobuf::Duration::from)
                .into(),
        };
        let answer = repeatable(|| self.rpc.gateway.drain_gateway(request.clone())).await?;
        Ok(answer.into_owned().unfinished_operation_ids)
    }

    /// The drivers that the gateway has, with the depths of each.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn drivers(&self) -> Result<Vec<v1::Driver>> {
        let answer = repeatable(|| {
            self.rpc
                .drivers
                .list_drivers(v1::ListDriversRequest::default())
        })
        .await?;
        Ok(answer.into_owned().drivers)
    }
}
