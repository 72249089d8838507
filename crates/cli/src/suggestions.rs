//! What a model's file suggests for sampling: `general.sampling.*`, as llama.cpp writes it when it converts a model.

use taper_checkpoint::Metadata;
use taper_server::SamplingDefaults;

const PREFIX: &str = "general.sampling.";
/// Those that are followed.
const NAMES: [&str; 5] = ["temp", "top_k", "top_p", "min_p", "penalty_repeat"];
/// Letters of a key that are shown: a file may have any.
const SHOWN_CHARS: usize = 40;

/// What a file suggests.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Suggestions {
    pub(crate) defaults: SamplingDefaults,
    /// Keys that are not followed, each with the reason.
    pub(crate) left_out: Vec<String>,
}

impl Suggestions {
    /// Those of a file. None of them keeps a model from being served.
    pub(crate) fn of(metadata: &Metadata) -> Suggestions {
        let mut found = Suggestions::default();
        for key in metadata.keys() {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            if let Err(reason) = found.follow(metadata, key, name) {
                let name: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
                found.left_out.push(format!("{name} ({reason})"));
            }
        }
        found
    }

    fn follow(&mut self, metadata: &Metadata, key: &str, name: &str) -> Result<(), String> {
        if !NAMES.contains(&name) {
            return Err("there is no such parameter here".to_owned());
        }
        let number = metadata.f64(key).ok().flatten().ok_or("it is no number")?;
        // llama.cpp's words for greedy and for all tokens are also numbers below 0.
        let from_0 = if number < 0.0 { 0.0 } else { number };
        let defaults = &mut self.defaults;
        match name {
            "temp" => defaults.temperature = Some(within(from_0, 0.0, 2.0)?),
            "top_k" if from_0.fract() == 0.0 && from_0 <= f64::from(i32::MAX) => defaults.top_k = Some(from_0 as u32),
            "top_k" => return Err(format!("{number} is no number of tokens")),
            "top_p" => defaults.top_p = Some(within(number, 0.0, 1.0)?),
            "min_p" => defaults.min_p = Some(within(number, 0.0, 1.0)?),
            _ => defaults.repetition_penalty = Some(within(number, 0.01, 100.0)?),
        }
        Ok(())
    }
}

fn within(number: f64, least: f64, most: f64) -> Result<f32, String> {
    if (least..=most).contains(&number) {
        Ok(number as f32)
    } else {
        Err(format!("{number} is not between {least} and {most}"))
    }
}

/// What requests of a model get that do not say it, in a line for people.
pub(crate) fn in_words(id: &str, settings: &SamplingDefaults, suggested: &SamplingDefaults) -> String {
    let in_force = settings.in_force(suggested);
    let told: Vec<String> =
        in_force.iter().map(|default| format!("{} {} ({})", default.name, default.value, default.from)).collect();
    let defaults = match told.len() {
        0 => "each protocol's own".to_owned(),
        _ => format!("{}; for the rest each protocol's own", told.join(", ")),
    };
    format!("sampling defaults of {id}: {defaults}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_checkpoint::Checkpoint;
    use taper_testkit::gguf::Value;
    use taper_testkit::tiny::TinyModel;

    fn of(keys: Vec<(&str, Value)>) -> Suggestions {
        let file = keys.into_iter().fold(TinyModel::default().builder(), |file, (name, value)| {
            file.set(&format!("general.sampling.{name}"), value)
        });
        Suggestions::of(Checkpoint::from_bytes("tiny.gguf", file.build()).unwrap().metadata())
    }

    #[test]
    fn a_files_keys_are_read_whatever_their_width() {
        assert_eq!(of(vec![]), Suggestions::default());
        let found = of(vec![
            ("temp", Value::F32(0.6)),
            ("top_k", Value::I32(20)),
            ("top_p", Value::F32(0.95)),
            ("min_p", Value::U8(0)),
            ("penalty_repeat", Value::F32(1.05)),
        ]);
        let expected = SamplingDefaults {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            ..SamplingDefaults::NONE
        };
        assert_eq!(found, Suggestions { defaults: expected, left_out: vec![] });
        let off = of(vec![("temp", Value::I32(-1)), ("top_k", Value::F32(-1.0))]).defaults;
        assert_eq!((off.temperature, off.top_k), (Some(0.0), Some(0)), "greedy, and all");
    }

    #[test]
    fn what_cannot_be_followed_is_named_and_stops_nothing() {
        for (name, value, part) in [
            ("temp", Value::F32(2.5), "temp (2.5 is not between"),
            ("temp", Value::F32(f32::NAN), "temp (NaN"),
            ("top_k", Value::F32(1.5), "top_k (1.5 is no number of tokens)"),
            ("top_p", Value::F32(1.5), "top_p (1.5 is not between 0 and 1)"),
            ("min_p", Value::String(b"x".to_vec()), "min_p (it is no number)"),
            ("penalty_repeat", Value::U32(0), "penalty_repeat (0 is not between 0.01 and 100)"),
            ("mirostat", Value::I32(2), "mirostat (there is no such parameter here)"),
            ("sequence", Value::String(b"x".to_vec()), "sequence (there is no such parameter here)"),
        ] {
            let found = of(vec![(name, value), ("zzz", Value::I32(1))]);
            assert_eq!(found.defaults, SamplingDefaults::NONE, "{name}");
            assert_eq!(found.left_out.len(), 2, "{found:?}");
            assert!(found.left_out[0].contains(part), "{found:?}");
        }
    }

    #[test]
    fn a_line_says_what_holds_and_where_it_is_from() {
        let settings = SamplingDefaults { temperature: Some(0.6), ..SamplingDefaults::NONE };
        let suggested = SamplingDefaults { temperature: Some(1.5), top_k: Some(20), ..SamplingDefaults::NONE };
        let line = in_words("m", &settings, &suggested);
        let expected =
            "sampling defaults of m: temperature 0.6 (setting), top_k 20 (model); for the rest each protocol's own";
        assert_eq!(line, expected);
        let line = in_words("m", &SamplingDefaults::NONE, &SamplingDefaults::NONE);
        assert_eq!(line, "sampling defaults of m: each protocol's own");
    }
}
