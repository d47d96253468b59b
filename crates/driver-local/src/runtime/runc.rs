//! The calls of runc. After the start there are none: the driver acts on control groups.

use super::{Call, Runtime};
use crate::error::LocalError;

impl Runtime {
    /// Makes and starts a container. When this returns, PID 1 runs.
    ///
    /// On an error a container may be there, half-made or whole.
    pub(super) async fn runc_run(&self, call: &Call<'_>) -> Result<(), LocalError> {
        let mut command = self.command(call);
        command
            .args(["run", "--detach", "--bundle"])
            .arg(&call.bundle)
            .arg(&call.container);
        self.to_its_end(command, call).await
    }
}
