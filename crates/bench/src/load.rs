//! Load on a server with OpenAI's interface, whichever it is, and what its users would have noticed of it.
//!
//! A [`Session`] knows the server and how to ask it; it [runs](Session::run) one [`Level`] of load after the other, each into a
//! [`Collected`], of which [`row`](Session::row) makes a JSON object; [`table`], [`csv`] and [`html`] show such rows.
//!
//! Times are taken by this program's clock, at the arrival of the bytes: *TTFT* from the request to the first event with text, *ITL*
//! between events with text, *E2E* to the end of the stream, *TPOT* = (E2E - TTFT) / (tokens - 1). In a closed loop a request counts
//! from when it is sent, connecting included. In an open loop it counts from when it was due, so that a server that makes others wait
//! is not the kinder measured for it; how late requests were sent is reported beside. A request that fails is in no latency.

mod address;
mod client;
mod collected;
mod connections;
mod driver;
mod events;
mod failure;
mod form;
mod latency;
mod lengths;
mod limits;
mod page;
mod prompts;
mod schedule;
mod session;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use collected::Collected;
pub use driver::{Level, Progress, Stop};
pub use failure::Failure;
pub use form::Endpoint;
pub use lengths::{Length, LengthError};
pub use limits::{LimitError, Limits};
pub use page::{csv, html, table};
pub use prompts::{File, FileError, Source};
pub use schedule::{Arrivals, Load};
pub use session::{Plan, Session};
