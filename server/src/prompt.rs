//! From a request's text to tokens. Long prompts take milliseconds, so they are not read by who serves clients.

use taper_text::EncodeOptions;

use crate::errors::ApiError;
use crate::state::Served;

/// Tokenizes `text`, which came in the field `param`. Special tokens may be written out, as in the peers' servers.
pub(crate) fn encode(served: &Served, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    encode_with(served, text, param, EncodeOptions { parse_special: true, add_bos: true })
}

/// [`encode`] in another way.
pub(crate) fn encode_with(
    served: &Served,
    text: &str,
    param: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>, ApiError> {
    check_fits(served, text, param)?;
    served.model.tokenizer.encode(text, options).map_err(|error| cannot_be_tokenized(param, &error))
}

/// A text that the vocabulary cannot express.
pub(crate) fn cannot_be_tokenized(param: &str, error: &taper_text::Error) -> ApiError {
    ApiError::invalid(param, format!("{param} cannot be tokenized: {error}"))
}

/// Tokens that a text has at least, without a look at it: megabytes that cannot fit are not worth tokenizing.
pub(crate) fn least_tokens(served: &Served, text: &str) -> usize {
    // Twice, since normalization may shorten a text.
    text.len() / served.longest_token_bytes.max(1) / 2
}

/// The beginning of a text, of no more bytes than a text that may fit can have.
pub(crate) fn beginning_that_may_fit<'a>(served: &Served, text: &'a str) -> &'a str {
    let most = served.model.context_len.saturating_mul(2 * served.longest_token_bytes.max(1));
    &text[..text.floor_char_boundary(most)]
}

/// The end of a text, of no more bytes than a text that may fit can have.
pub(crate) fn end_that_may_fit<'a>(served: &Served, text: &'a str) -> &'a str {
    let most = served.model.context_len.saturating_mul(2 * served.longest_token_bytes.max(1));
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// Refuses a text that cannot fit, whatever its tokens are.
pub(crate) fn check_fits(served: &Served, text: &str, param: &str) -> Result<(), ApiError> {
    let context_len = served.model.context_len;
    let shortest = least_tokens(served, text);
    if shortest > context_len {
        return Err(ApiError::context_overflow(param, shortest, context_len, false));
    }
    Ok(())
}
