//! What can be wrong with the text side of a model file.

/// Why a tokenizer or a chat template cannot be made from a file, or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is missing or has another type.
    #[error(transparent)]
    Checkpoint(#[from] taper_checkpoint::Error),
    /// A kind of vocabulary that is not implemented.
    #[error("tokenizer.ggml.model is {found}, which is not supported. Supported: {supported}")]
    UnsupportedModel {
        /// The name in the file, quoted.
        found: String,
        /// The names that work.
        supported: String,
    },
    /// A way of splitting text into words that is not implemented. Guessing would give wrong tokens without notice.
    #[error(
        "tokenizer.ggml.pre is {found}, which is not supported. Supported: {supported}. \
         A file without the key was converted by an old tool: fetch a newer conversion of the model"
    )]
    UnsupportedPreTokenizer {
        /// The name in the file, quoted.
        found: String,
        /// The names that work.
        supported: String,
    },
    /// The vocabulary contradicts itself.
    #[error("{key} cannot be used: {reason}. The file is damaged or was converted wrongly; fetch another copy")]
    BadVocabulary {
        /// The metadata key.
        key: &'static str,
        /// What was found and what was expected.
        reason: String,
    },
    /// A text that the vocabulary cannot express.
    #[error("the text cannot be tokenized: {reason}")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// A chat template that is not valid Jinja.
    #[error("chat template {name} cannot be used: {reason}. Give another one with --chat-template FILE or NAME")]
    Template {
        /// Where the template comes from.
        name: String,
        /// What the parser said, with the line.
        reason: String,
    },
}

/// A text from a file, fit to stand in a message: escaped, and cut when it is long.
pub(crate) fn quoted(text: &str) -> String {
    const MAX: usize = 60;
    let cut: String = text.chars().take(MAX).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{cut:?}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_files_cannot_paint_the_terminal() {
        assert_eq!(quoted("plain"), "\"plain\"");
        assert_eq!(quoted("\u{1b}[31m"), "\"\\u{1b}[31m\"");
        assert!(quoted(&"x".repeat(1000)).len() < 80);
    }
}
