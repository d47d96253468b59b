//! `stop`: everything of the compute goes, and what is on disk is synced.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use overwinter_driver::{Compute, DriverError, EffectContext, Effected};

use super::{effected, owed};
use crate::compute::ComputeRecord;
use crate::driver::{Shared, blocking};
use crate::error::{At, LocalError};
use crate::teardown;

impl Shared {
    pub(crate) async fn stop(
        self: &Arc<Self>,
        ctx: &EffectContext,
    ) -> Result<Effected, DriverError> {
        let turn = self.turn(ctx).await?;
        turn.entry.set_live(None);
        let sandbox = ctx.sandbox();
        let until = turn.until;
        {
            let _ending = self.ending.acquire().await;
            let host = Arc::clone(&self.host);
            blocking(move || {
                match host.look(sandbox)?.record() {
                    Some(ComputeRecord {
                        native,
                        first: Some(first),
                        ..
                    }) => {
                        teardown::end_from(&host, native, Some(*first), until)?;
                    }
                    Some(ComputeRecord {
                        native,
                        first: None,
                        ..
                    }) => {
                        teardown::end(&host, native, until)?;
                    }
                    None => {}
                }
                teardown::forget(&host, sandbox)
            })
            .await
            .map_err(LocalError::unsettled)?;
        }
        let mut effected = effected(Compute::Absent);
        let storage = self.host.layout.sandbox(sandbox).workspace();
        let synced = blocking(move || {
            let begun = Instant::now();
            if storage.is_dir() {
                let folder = File::open(&storage).at("opening", &storage)?;
                rustix::fs::syncfs(&folder).at("syncing", &storage)?;
            }
            Ok(begun.elapsed())
        })
        .await
        .map_err(LocalError::unsettled)?;
        effected
            .remarks
            .push(format!("sync={:.1}ms", synced.as_secs_f64() * 1000.0));
        effected.leftovers = owed(&self.host.layout.sandbox(sandbox), ctx.key)?;
        Ok(effected)
    }
}
