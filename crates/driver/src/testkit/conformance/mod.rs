//! What every driver must do on its real backend, as named cases.
//!
//! A driver's crate implements [`Backend`] and writes
//! `overwinter_driver::conformance!(make_backend);` in an integration test, where `make_backend` is
//! an async function that gives a fresh backend: each case becomes a test of its own. The same
//! cases can be run one after the other with [`run`].
//!
//! | module | its cases |
//! |---|---|
//! | [`life`] | describe, pin, create, delete, list |
//! | [`sleep`] | every depth that is offered, and what it keeps |
//! | [`keys`] | at most once, fenced, in parallel |
//! | [`recovery`] | killed from outside, restarted, new credentials |

pub mod disk;
pub mod keys;
mod ledger;
pub mod life;
mod port;
pub mod recovery;
pub mod sleep;
mod subject;
mod wires;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use overwinter_lifecycle::ids::SandboxId;

pub use ledger::TestLedger;
pub use port::TestPort;
pub use subject::Subject;
pub use wires::Wires;

use crate::driver::Driver;
use crate::types::PinnedImage;

/// A driver on its backend, with what the suite must do to it that no driver's call does.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The driver that was made last.
    fn driver(&self) -> Arc<dyn Driver>;

    /// What its drivers were given as the gateway.
    fn port(&self) -> Arc<TestPort>;

    /// What its drivers were given as the ledger of receipts.
    fn ledger(&self) -> Arc<TestLedger>;

    /// An image that is there, with the programs of busybox or those of the simulation: `true`,
    /// `cat`.
    async fn image(&self) -> String;

    /// Was there when it was pinned, and is not any more.
    async fn vanished_image(&self) -> PinnedImage;

    /// argv of a program that counts in its memory and prints each number on a line, from 1, one
    /// every 50 ms.
    fn counter(&self) -> Vec<String>;

    /// Ends the sandbox's compute from outside, behind the driver's back.
    async fn kill(&self, sandbox: SandboxId);

    /// The gateway has died: makes a new driver on the same state.
    async fn restart(&self);

    /// What is there of any sandbox: computes, mounts, folders, artifacts. Empty when nothing is.
    async fn leftovers(&self) -> Vec<String>;
}

/// How a run of the whole suite went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub passed: Vec<&'static str>,
    /// With what the case panicked with.
    pub failed: Vec<(&'static str, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, why) in &self.failed {
            writeln!(f, "FAILED {case}: {why}")?;
        }
        write!(
            f,
            "{} passed, {} failed",
            self.passed.len(),
            self.failed.len()
        )
    }
}

impl Report {
    async fn case(&mut self, name: &'static str, case: impl Future<Output = ()>) {
        match AssertUnwindSafe(case).catch_unwind().await {
            Ok(()) => self.passed.push(name),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied());
                self.failed
                    .push((name, text.unwrap_or("it panicked").to_owned()));
            }
        }
    }
}

/// The one list of cases: `$callback! { $arguments; module::case, … }`.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($callback:ident, $argument:expr) => {
        $callback! {
            $argument;
            life::modes_are_described_with_facts_that_can_be_true,
            life::a_missing_image_is_missing_and_changes_nothing,
            life::created_attached_used_and_deleted_without_a_trace,
            life::a_create_that_failed_half_way_leaves_nothing,
            life::what_was_never_made_is_absent_and_can_be_deleted,
            life::a_listing_shows_ours_with_its_labels,
            sleep::freeze_keeps_the_same_process_and_it_stands_still,
            sleep::checkpoint_keeps_the_process_and_releases_its_compute,
            sleep::stop_keeps_the_contents_and_ends_the_processes,
            sleep::a_depth_that_is_not_offered_is_unsupported_without_effect,
            sleep::frozen_compute_is_stopped_without_waking,
            sleep::absent_compute_is_stopped_again,
            sleep::twenty_stops_keep_every_byte,
            sleep::twenty_freezes_keep_every_byte,
            disk::frozen_compute_is_written_to_disk_without_waking,
            disk::memory_on_disk_is_given_up_for_a_stop,
            disk::a_checkpoint_that_is_asked_for_again_answers_with_what_it_did,
            disk::memory_on_disk_is_used_once,
            disk::a_reference_of_another_driver_is_foreign,
            keys::the_same_key_twice_is_one_effect,
            keys::a_smaller_key_is_fenced,
            keys::effects_on_different_sandboxes_run_in_parallel,
            recovery::new_credentials_replace_the_old,
            recovery::killed_from_outside_is_noticed_and_starts_again,
            recovery::a_restarted_driver_finds_what_is_live_frozen_and_absent,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($make:expr; $($module:ident :: $case:ident),* $(,)?) => {
        $(
            #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = $make().await;
                $crate::testkit::conformance::$module::$case(&backend).await;
            }
        )*
    };
}

/// One `#[tokio::test]` a case. `$make` is an async function without arguments that gives a
/// [`Backend`](crate::testkit::conformance::Backend).
#[macro_export]
macro_rules! conformance {
    ($make:path) => {
        use $crate::__conformance_tests;
        $crate::__conformance_cases!(__conformance_tests, $make);
    };
}

/// Runs every case, one after the other, each on a backend of its own.
pub async fn run<B: Backend, F: Future<Output = B>>(make: impl Fn() -> F) -> Report {
    macro_rules! run_all {
        ($make:expr; $($module:ident :: $case:ident),* $(,)?) => {{
            let mut report = Report::default();
            $(
                let case = async { $module::$case(&$make().await).await };
                report.case(stringify!($case), case).await;
            )*
            report
        }};
    }
    crate::__conformance_cases!(run_all, make)
}
