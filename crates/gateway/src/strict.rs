//! JSON by the schema. Protobuf's rule is to refuse a field that a message does not have, and the
//! generated code ignores it: a verb whose depth is misspelt would be carried out at another depth.
//! So what comes as JSON is held against the descriptors first.

use std::collections::HashMap;
use std::sync::Arc;

use buffa_descriptor::reflect::DynamicMessage;
use buffa_descriptor::{DescriptorPool, MessageIndex};
use connectrpc::interceptor::{StreamRequest, StreamResponse, UnaryRequest, UnaryResponse};
use connectrpc::{
    CodecFormat, ConnectError, Interceptor, Next, NextStream, Payload, PayloadStream,
};
use futures::StreamExt as _;

use crate::api::ApiError;

/// Refuses JSON that does not fit the message of its method.
pub(crate) struct Strict {
    pool: Arc<DescriptorPool>,
    /// By path: `/package.Service/Method`.
    inputs: HashMap<String, MessageIndex>,
}

impl Strict {
    #[must_use]
    pub(crate) fn new(pool: Arc<DescriptorPool>) -> Self {
        let methods = pool.services().iter().flat_map(|service| {
            let path = |method: &str| format!("/{}/{method}", service.full_name());
            (service.methods().iter()).map(move |method| (path(method.name()), method.input()))
        });
        Self {
            inputs: methods.collect(),
            pool,
        }
    }

    fn input(&self, path: Option<&str>) -> Option<MessageIndex> {
        self.inputs.get(path?).copied()
    }
}

/// One message. What cannot be read at all is left to the decoder, which says so.
fn check(
    pool: &Arc<DescriptorPool>,
    input: MessageIndex,
    payload: &Payload,
) -> Result<(), ConnectError> {
    if payload.format() != CodecFormat::Json {
        return Ok(());
    }
    let Ok(json) = std::str::from_utf8(payload.bytes()) else {
        return Ok(());
    };
    // An empty body stands for the empty message.
    if json.trim().is_empty() {
        return Ok(());
    }
    match DynamicMessage::from_json(pool.clone(), input, json) {
        Ok(_) => Ok(()),
        Err(error) => Err(ApiError::invalid(error.to_string()).into()),
    }
}

#[connectrpc::async_trait]
impl Interceptor for Strict {
    async fn intercept_unary(
        &self,
        request: UnaryRequest,
        next: Next<'_>,
    ) -> Result<UnaryResponse, ConnectError> {
        if let Some(input) = self.input(request.ctx.path()) {
            check(&self.pool, input, &request.payload)?;
        }
        next.run(request).await
    }

    async fn intercept_streaming(
        &self,
        request: StreamRequest,
        inbound: PayloadStream,
        next: NextStream<'_>,
    ) -> Result<StreamResponse, ConnectError> {
        let Some(input) = self.input(request.ctx.path()) else {
            return next.run(request, inbound).await;
        };
        let pool = self.pool.clone();
        let checked = inbound.map(move |message| {
            let message = message?;
            check(&pool, input, &message)?;
            Ok(message)
        });
        next.run(request, checked.boxed()).await
    }
}
