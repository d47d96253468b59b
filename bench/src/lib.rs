//! Overwinter measured: figures beside the bare tools in the same run.
//!
//! | module | its one idea |
//! |---|---|
//! | [`stats`] | samples, p50 and p99 |
//! | [`report`] | a row, its bound, the table and the JSON |
//! | [`host`] | a real gateway process on this host |
//! | [`bare`] | an equivalent container, by the runtime alone |
//! | [`embedded`] | a gateway on the simulated driver, in this process or a child |
//! | [`seed`] | sleeping sandboxes, written straight into a store |
//! | [`hop`] | the one-hop stream that files are compared with |
//! | [`sections`] | what is measured |

pub mod bare;
pub mod child;
pub mod embedded;
pub mod hop;
pub mod host;
pub mod report;
pub mod sections;
pub mod seed;
pub mod stats;
