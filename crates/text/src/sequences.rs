//! The sequences of tokens by which a text gets into another: what DRY's sequence breakers are, to a sampler that knows tokens alone.

use crate::{Error, Tokenizer};

impl Tokenizer {
    /// Every token that has one of `texts` in it, and the tokens of each text itself, with a blank before it and without, where none of
    /// these has it whole. A longer text that begins or ends within a token is not found.
    pub fn sequences_with(&self, texts: &[String]) -> Result<Vec<Vec<u32>>, Error> {
        let mut first_bytes = [false; 256];
        texts.iter().filter_map(|text| text.bytes().next()).for_each(|byte| first_bytes[usize::from(byte)] = true);
        // Most places of the vocabulary are ruled out by their byte alone.
        let has_one = |bytes: &[u8]| {
            let begins = |place: &usize| texts.iter().any(|text| bytes[*place..].starts_with(text.as_bytes()));
            (0..bytes.len()).filter(|&place| first_bytes[usize::from(bytes[place])]).any(|place| begins(&place))
        };
        let vocab_size = u32::try_from(self.vocab_size()).unwrap_or(u32::MAX);
        let with_text = |id: &u32| self.token_bytes(*id).is_some_and(has_one);
        let mut sequences: Vec<Vec<u32>> = (0..vocab_size).filter(with_text).map(|id| vec![id]).collect();
        for text in texts {
            for text in [text.clone(), format!(" {text}")] {
                let tokens = self.encode_inner(&text)?;
                if !tokens.iter().any(with_text) && !sequences.contains(&tokens) && !tokens.is_empty() {
                    sequences.push(tokens);
                }
            }
        }
        Ok(sequences)
    }
}

#[cfg(test)]
mod tests {
    use crate::test_vocabulary::{byte_level, sentence_piece, tokenizer};

    /// The sequences, each token as the vocabulary writes it.
    fn found(file: &taper_testkit::gguf::GgufBuilder, texts: &[&str]) -> Vec<String> {
        let tokenizer = tokenizer(file).unwrap();
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let written =
            |ids: Vec<u32>| ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect::<Vec<_>>().join(" ");
        tokenizer.sequences_with(&texts).unwrap().into_iter().map(written).collect()
    }

    #[test]
    fn a_character_is_every_token_that_has_it() {
        let mut of_l = found(&sentence_piece(), &["l"]);
        of_l.sort_unstable();
        assert_eq!(of_l, ["<0x6C>", "<tool>", "hell", "hello", "l", "ll", "▁hello"]);
        assert_eq!(found(&byte_level(), &["\n"]), ["Ċ", "ĊĊ"]);
    }

    #[test]
    fn a_longer_text_is_its_own_tokens_too() {
        assert_eq!(found(&sentence_piece(), &["ls"]), ["l s", "▁ l s"]);
        assert_eq!(found(&sentence_piece(), &["hell"]), ["hell", "hello", "▁hello"]);
        assert_eq!(found(&sentence_piece(), &[]), Vec::<String>::new());
    }
}
