//! What a program says of its models: which there are, how they are loaded, and how much of them there may be at a time.

use std::time::Duration;

use crate::facts::ServerFacts;
use crate::state::ServedModel;

/// Loads models, each on a thread of its own, one at a time.
pub trait ModelLoader: Send + Sync + 'static {
    /// Loads the model in place `index` of [`crate::ServerState::declare`]'s list, telling `tell` how far it is.
    ///
    /// # Errors
    /// The reason, in words for those who asked for the model. A later request tries again.
    fn load(&self, index: usize, tell: Tell) -> Result<LoadedModel, String>;
}

/// Hears how far a load is.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// What a load gives.
pub struct LoadedModel {
    /// The model; its id is the one that was declared.
    pub model: ServedModel,
    /// What is known besides.
    pub facts: ServerFacts,
}

/// A model that a server has, loaded or not.
#[derive(Debug, Clone)]
pub struct DeclaredModel {
    /// The name that `/v1/models` lists and answers carry; no other model has it.
    pub id: String,
    /// Other names of it; no other model has one of these.
    pub aliases: Vec<String>,
    /// When it was made or found, in seconds since 1970.
    pub created_unix: u64,
    /// Bytes that weights and KV cache take, at most; how many they are is known once it was loaded.
    pub max_bytes: u64,
    /// What is known of it without loading it.
    pub facts: ServerFacts,
}

/// How much may be loaded, and how long is waited.
#[derive(Debug, Clone)]
pub struct ModelLimits {
    /// Models that are loaded at a time, at most.
    pub max_loaded: usize,
    /// Bytes of their weights and KV caches together, at most. A model that is larger is loaded alone.
    pub max_bytes: u64,
    /// Requests that wait for one model, at most; further ones are refused.
    pub max_waiting: usize,
    /// Time that a request has, its waiting included.
    pub request_timeout: Option<Duration>,
    /// After this long a model that waits while all others are used has them take no new requests until it is loaded; and for
    /// this long after a load that does not happen.
    pub patience: Duration,
    /// How long after a load that failed requests of the model are refused before it is tried again.
    pub retry_after: Duration,
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self {
            max_loaded: usize::MAX,
            max_bytes: u64::MAX,
            max_waiting: 256,
            request_timeout: None,
            patience: Duration::from_secs(10),
            retry_after: Duration::from_secs(10),
        }
    }
}
