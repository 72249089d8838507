//! From a request's text to tokens. Runs on a blocking thread: long prompts take milliseconds.

use taper_text::EncodeOptions;

use crate::errors::ApiError;
use crate::state::Served;

/// Tokenizes `text`, which came in the field `param`. Special tokens may be written out, as in the peers' servers.
pub(crate) fn encode(served: &Served, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    check_fits(served, text, param)?;
    let options = EncodeOptions { parse_special: true, add_bos: true };
    served.model.tokenizer.encode(text, options).map_err(|error| cannot_be_tokenized(param, &error))
}

/// A text that the vocabulary cannot express.
pub(crate) fn cannot_be_tokenized(param: &str, error: &taper_text::Error) -> ApiError {
    ApiError::invalid(param, format!("{param} cannot be tokenized: {error}"))
}

/// Refuses a text that cannot fit, whatever its tokens are.
pub(crate) fn check_fits(served: &Served, text: &str, param: &str) -> Result<(), ApiError> {
    let context_len = served.model.context_len;
    // Megabytes that cannot fit are not worth tokenizing. Twice, since normalization may shorten a text.
    let shortest = text.len() / served.longest_token_bytes.max(1) / 2;
    if shortest > context_len {
        return Err(ApiError::context_overflow(param, shortest, context_len, false));
    }
    Ok(())
}
