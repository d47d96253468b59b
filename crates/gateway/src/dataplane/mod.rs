//! The data plane: processes and files of sandboxes that are Ready.
//!
//! | module | its one idea |
//! |---|---|
//! | [`admit`] | letting a call in, or saying why not |
//! | [`process`] | processes in the supervisor's words and in the API's |
//! | [`exec`] | one exec stream, which goes on over a reconnection by offset |
//! | [`files`] | files |

pub mod admit;
pub mod exec;
pub mod files;
pub mod process;
