//! Overwinter's wire types: the public API (`v1`) and the supervisor's (`supervisor`), as generated
//! from `proto/`, with the ids and the stable error reasons that both sides share.

pub mod content;

/// Generated from `proto/`; shapes and units are documented there.
#[allow(clippy::all, missing_docs, unreachable_pub, unused, rustdoc::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/overwinter.rs"));
}

pub use proto::google::rpc;
pub use proto::overwinter::supervisor::v1 as supervisor;
pub use proto::overwinter::v1;

/// The descriptors of every service, for reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/overwinter.bin"));
