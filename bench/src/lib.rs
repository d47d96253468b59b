//! Overwinter measured: figures beside the bare tools in the same run.
//!
//! | module | its one idea |
//! |---|---|
//! | [`stats`] | samples, p50 and p99 |
//! | [`report`] | a row, its bound, the table and the JSON |
//! | [`host`] | a real gateway process on this host |
//! | [`bare`] | an equivalent container, by the runtime alone |
//! | [`gvisor`] | the same memory, by gVisor's runtime alone |
//! | [`memory`] | what a process inside holds |
//! | [`pageout`] | a bare `process_madvise` over a process that holds the same |
//! | [`embedded`] | a gateway on the simulated driver, in this process or a child |
//! | [`seed`] | sleeping sandboxes, written straight into a store |
//! | [`hop`] | the one-hop stream that files are compared with |
//! | [`sections`] | what is measured |

pub mod bare;
pub mod child;
pub mod embedded;
pub mod engine;
pub mod gvisor;
pub mod hop;
pub mod host;
pub mod memory;
pub mod pageout;
pub mod report;
pub mod sections;
pub mod seed;
pub mod stats;
