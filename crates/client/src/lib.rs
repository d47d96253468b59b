//! Overwinter for Rust programs: sandboxes that sleep.
//!
//! ```no_run
//! # async fn f() -> overwinter_client::Result<()> {
//! use overwinter_client::{Client, Depth, default_socket};
//!
//! let client = Client::connect(default_socket());
//! client.create().name("box").image("/srv/images/busybox").wait().await?;
//!
//! let ran = client.command("box", ["uname", "-r"]).run().await?;
//! println!("{}", String::from_utf8_lossy(&ran.stdout));
//!
//! client.suspend("box").depth(Depth::Freeze).wait().await?;
//! client.resume("box").wait().await?;
//! client.delete("box").wait().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each call gives a [`Result`] whose [`Error`] has a stable reason code and says what to do next.
//! Requests are builders and answers are small types of this crate, so that the API can grow
//! without breaking a build; [`raw`] has the generated messages for what they leave out.

mod client;
mod error;
mod exec;
mod files;
mod gateway;
mod operation;
mod policy;
mod process;
mod sandbox;
mod transport;
mod types;
mod upload;
mod verb;

pub use client::Client;
pub use error::{Code, Error, Result, reason};
pub use exec::{Exec, ExecControl, ExecEvent, ExecStdin, Exit, ExitCause, Reattach};
pub use files::{FilePath, FileReader, Files, WriteFile};
pub use operation::{Operation, Outcome};
pub use policy::Policy;
pub use process::{Command, Ran};
pub use sandbox::{Change, SandboxList, Update, Watch};
pub use transport::default_socket;
pub use types::{Achieved, Depth, Disposition, Phase, Sandbox, SandboxRef};
pub use verb::{Accepted, Create, Delete, Done, Resume, Start, Suspend};

/// The generated messages. They follow the wire, so new fields and variants may appear in any
/// release; build them with `..Default::default()` and never match their enums exhaustively.
pub mod raw {
    pub use overwinter_api::v1::*;

    /// The short name of an enum's value: `OPERATION_KIND_CREATE` without `OPERATION_KIND_` is
    /// `create`; a value that this version does not know is its number.
    pub fn label<E: buffa::Enumeration>(value: buffa::EnumValue<E>, prefix: &str) -> String {
        match value.as_known() {
            Some(known) => {
                let name = known.proto_name();
                name.strip_prefix(prefix)
                    .unwrap_or(name)
                    .to_ascii_lowercase()
            }
            None => value.to_i32().to_string(),
        }
    }
}
