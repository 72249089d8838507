//! One file per command.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod perplexity;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod tune;
