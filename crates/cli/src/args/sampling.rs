//! What `taper serve` has requests sampled with that do not say it.

use super::positive;
use clap::Args;
use taper_server::SamplingDefaults;

/// For requests on all protocols. What is not given is up to the model's file, and then to each protocol.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingDefaultArgs {
    /// `temperature` of requests that give none, from 0 (the most probable token always) to 2 [default: what the model's file
    /// suggests, else the protocol's: 1, of /completion and Ollama's interface 0.8].
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true, env = "TAPER_TEMPERATURE")]
    pub(crate) temperature: Option<f32>,

    /// `top_k` of requests that give none; 0 is all [default: what the model's file suggests, else the protocol's: all, of
    /// /completion and Ollama's interface 40].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)), allow_negative_numbers = true, env = "TAPER_TOP_K")]
    pub(crate) top_k: Option<u32>,

    /// `top_p` of requests that give none, 0 to 1 [default: what the model's file suggests, else the protocol's: 1, of
    /// /completion 0.95, of Ollama's interface 0.9].
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true, env = "TAPER_TOP_P")]
    pub(crate) top_p: Option<f32>,

    /// `min_p` of requests that give none, 0 to 1 [default: what the model's file suggests, else the protocol's: 0, of
    /// /completion 0.05].
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true, env = "TAPER_MIN_P")]
    pub(crate) min_p: Option<f32>,

    /// `typical_p` of requests that give none, 0 to 1 [default: 1].
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true, env = "TAPER_TYPICAL_P")]
    pub(crate) typical_p: Option<f32>,

    /// `repetition_penalty` of requests that give none, 0.01 to 100; 1 is off [default: what the model's file suggests, else 1].
    #[arg(long, value_name = "R", value_parser = factor, allow_negative_numbers = true, env = "TAPER_REPETITION_PENALTY")]
    pub(crate) repetition_penalty: Option<f32>,

    /// `presence_penalty` of requests that give none, -2 to 2 [default: 0].
    #[arg(long, value_name = "P", value_parser = penalty, allow_negative_numbers = true, env = "TAPER_PRESENCE_PENALTY")]
    pub(crate) presence_penalty: Option<f32>,

    /// `frequency_penalty` of requests that give none, -2 to 2 [default: 0].
    #[arg(long, value_name = "P", value_parser = penalty, allow_negative_numbers = true, env = "TAPER_FREQUENCY_PENALTY")]
    pub(crate) frequency_penalty: Option<f32>,

    /// Most tokens of answers to requests without a limit [default: the rest of the context; of /v1/completions 16, and
    /// /v1/messages insists on one].
    #[arg(long, value_name = "TOKENS", value_parser = positive, env = "TAPER_MAX_TOKENS")]
    pub(crate) max_tokens: Option<usize>,
}

impl SamplingDefaultArgs {
    /// What the server is told.
    pub(crate) fn defaults(&self) -> SamplingDefaults {
        SamplingDefaults {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            max_tokens: self.max_tokens,
        }
    }
}

// The bounds of requests' fields: a default is a value that a request may give.

fn temperature(text: &str) -> Result<f32, String> {
    between(text, 0.0, 2.0)
}

fn share(text: &str) -> Result<f32, String> {
    between(text, 0.0, 1.0)
}

fn factor(text: &str) -> Result<f32, String> {
    between(text, 0.01, 100.0)
}

fn penalty(text: &str) -> Result<f32, String> {
    between(text, -2.0, 2.0)
}

fn between(text: &str, least: f32, most: f32) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a number between {least} and {most}, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use crate::settings::without_variables;
    use clap::{CommandFactory, FromArgMatches};
    use taper_server::SamplingDefaults;

    fn defaults(flags: &str) -> Result<SamplingDefaults, String> {
        let words = ["taper", "serve"].into_iter().chain(flags.split_whitespace());
        let matches =
            without_variables(Cli::command()).try_get_matches_from(words).map_err(|error| error.to_string())?;
        let Command::Serve(args) = Cli::from_arg_matches(&matches).unwrap().command else { panic!("it is serve") };
        Ok(args.sampling.defaults())
    }

    #[test]
    fn what_is_not_given_is_left_open() {
        assert_eq!(defaults(""), Ok(SamplingDefaults::NONE));
        let expected = SamplingDefaults { temperature: Some(0.6), top_k: Some(0), ..SamplingDefaults::NONE };
        assert_eq!(defaults("--temperature 0.6 --top-k 0"), Ok(expected));
    }

    #[test]
    fn every_default_has_a_flag_of_its_name_and_its_bounds() {
        for (name, good, bad) in [
            ("temperature", ["0", "2"], ["-0.1", "2.1"]),
            ("top_k", ["0", "2147483647"], ["-1", "2147483648"]),
            ("top_p", ["0", "1"], ["-0.1", "1.1"]),
            ("min_p", ["0", "1"], ["-0.1", "NaN"]),
            ("typical_p", ["0", "1"], ["-0.1", "x"]),
            ("repetition_penalty", ["0.01", "100"], ["0", "101"]),
            ("presence_penalty", ["-2", "2"], ["-2.1", "2.1"]),
            ("frequency_penalty", ["-2", "2"], ["-2.1", "inf"]),
            ("max_tokens", ["1", "100000"], ["0", "1.5"]),
        ] {
            let flag = format!("--{}", name.replace('_', "-"));
            for value in good {
                let found = defaults(&format!("{flag} {value}")).unwrap();
                let given: Vec<_> =
                    found.fields().into_iter().filter_map(|(name, value)| Some((name, value?.as_f64()?))).collect();
                assert_eq!(given, [(name, value.parse().unwrap())], "{flag} {value}");
            }
            for value in bad {
                let refused = defaults(&format!("{flag} {value}")).unwrap_err();
                assert!(refused.contains(&flag), "{refused}");
            }
        }
        assert_eq!(SamplingDefaults::NONE.fields().len(), 9, "as many as here");
    }
}
