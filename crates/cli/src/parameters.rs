//! What a chat or a run asks of the sampler, under the API's names. What is absent is up to whoever answers: the engine of this
//! program has the defaults of [`Parameters::sampling`], a server has its own, and those of [`sampler`] where it says that it has none.
//!
//! [`TABLE`] has a row per parameter: what `/set` knows, shows and completes.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use taper_engine::{DynamicTemperature, InvalidParam, Mirostat, MirostatVersion, SamplingParams, Xtc};

/// Defaults of `taper chat` and `taper run`; other parameters have those of [`SamplingParams`].
pub(crate) const TEMPERATURE: f64 = 0.8;
pub(crate) const TOP_K: u64 = 40;
pub(crate) const TOP_P: f64 = 0.95;
pub(crate) const MIN_P: f64 = 0.05;

/// The variable of a chat template that says whether the model thinks, and the field of a request that gives variables.
pub(crate) const ENABLE_THINKING: &str = "enable_thinking";
pub(crate) const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

/// The defaults of the sampler by their names: what a server is asked for that has none of its own.
pub(crate) fn sampler() -> [(&'static str, Value); 4] {
    [("temperature", TEMPERATURE.into()), ("top_k", TOP_K.into()), ("top_p", TOP_P.into()), ("min_p", MIN_P.into())]
}

/// How tokens are chosen, and whether the model thinks first, as far as somebody said so. As JSON it is part of a request to
/// `/v1/chat/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Parameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) typical_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repetition_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repeat_last_n: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_n_sigma: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dynatemp_range: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dynatemp_exponent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) xtc_probability: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) xtc_threshold: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_keep: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirostat: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirostat_tau: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mirostat_eta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stop: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ignore_eos: bool,
    #[serde(rename = "chat_template_kwargs", serialize_with = "as_variables", skip_serializing_if = "Option::is_none")]
    pub(crate) think: Option<bool>,
}

/// A parameter that `/set` knows.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// What it does, and its default here.
    pub(crate) help: &'static str,
    slot: Slot,
}

/// Where a parameter lies, which also says what its values are.
#[derive(Debug)]
enum Slot {
    Number(fn(&mut Parameters) -> &mut Option<f64>),
    Whole(fn(&mut Parameters) -> &mut Option<u64>),
    Texts(fn(&mut Parameters) -> &mut Vec<String>),
    Switch(fn(&mut Parameters) -> &mut bool),
    /// A switch that may also be left to others.
    Thinking(fn(&mut Parameters) -> &mut Option<bool>),
}

/// Every parameter.
pub(crate) static TABLE: [Parameter; 23] = [
    Parameter {
        name: "temperature",
        help: "0 takes the most probable token always [0.8]",
        slot: Slot::Number(|p| &mut p.temperature),
    },
    Parameter {
        name: "top_k",
        help: "choose among so many tokens, 0 for all [40]",
        slot: Slot::Whole(|p| &mut p.top_k),
    },
    Parameter {
        name: "top_p",
        help: "choose among tokens of this mass together [0.95]",
        slot: Slot::Number(|p| &mut p.top_p),
    },
    Parameter {
        name: "min_p",
        help: "least share of the best token's probability [0.05]",
        slot: Slot::Number(|p| &mut p.min_p),
    },
    Parameter {
        name: "typical_p",
        help: "keep the most typical tokens of this mass [1]",
        slot: Slot::Number(|p| &mut p.typical_p),
    },
    Parameter {
        name: "repetition_penalty",
        help: "divides logits of tokens of prompt and answer [1]",
        slot: Slot::Number(|p| &mut p.repetition_penalty),
    },
    Parameter {
        name: "frequency_penalty",
        help: "taken from logits for each time in the answer [0]",
        slot: Slot::Number(|p| &mut p.frequency_penalty),
    },
    Parameter {
        name: "presence_penalty",
        help: "taken from logits of tokens of the answer [0]",
        slot: Slot::Number(|p| &mut p.presence_penalty),
    },
    Parameter {
        name: "repeat_last_n",
        help: "tokens that these penalties look at, 0 for none [all]",
        slot: Slot::Whole(|p| &mut p.repeat_last_n),
    },
    Parameter {
        name: "top_n_sigma",
        help: "keep logits so many deviations below the largest, 0 for all [0]",
        slot: Slot::Number(|p| &mut p.top_n_sigma),
    },
    Parameter {
        name: "dynatemp_range",
        help: "the temperature moves so far with the entropy [0]",
        slot: Slot::Number(|p| &mut p.dynatemp_range),
    },
    Parameter {
        name: "dynatemp_exponent",
        help: "the power at which it moves [1]",
        slot: Slot::Number(|p| &mut p.dynatemp_exponent),
    },
    Parameter {
        name: "xtc_probability",
        help: "how often the top choices are left out [0]",
        slot: Slot::Number(|p| &mut p.xtc_probability),
    },
    Parameter {
        name: "xtc_threshold",
        help: "what is a top choice: least probability [0.1]",
        slot: Slot::Number(|p| &mut p.xtc_threshold),
    },
    Parameter { name: "min_keep", help: "tokens that are kept at least [0]", slot: Slot::Whole(|p| &mut p.min_keep) },
    Parameter {
        name: "mirostat",
        help: "1 or 2 holds the surprise of tokens, 0 does not [0]",
        slot: Slot::Whole(|p| &mut p.mirostat),
    },
    Parameter { name: "mirostat_tau", help: "the surprise in bits [5]", slot: Slot::Number(|p| &mut p.mirostat_tau) },
    Parameter {
        name: "mirostat_eta",
        help: "the share of an error that is corrected at once [0.1]",
        slot: Slot::Number(|p| &mut p.mirostat_eta),
    },
    Parameter { name: "seed", help: "the same seed gives the same answer [none]", slot: Slot::Whole(|p| &mut p.seed) },
    Parameter {
        name: "max_tokens",
        help: "most tokens of an answer [the rest of the context]",
        slot: Slot::Whole(|p| &mut p.max_tokens),
    },
    Parameter {
        name: "stop",
        help: "ends an answer: a text, or a JSON array of texts [none]",
        slot: Slot::Texts(|p| &mut p.stop),
    },
    Parameter {
        name: "ignore_eos",
        help: "go on where the model would end: true or false [false]",
        slot: Slot::Switch(|p| &mut p.ignore_eos),
    },
    Parameter {
        name: "think",
        help: "whether a model that can thinks first: on, off or auto [auto]",
        slot: Slot::Thinking(|p| &mut p.think),
    },
];

/// What takes a parameter back to its default.
pub(crate) const DEFAULT: &str = "default";
/// The default of a switch that may be left to others.
const AUTO: &str = "auto";

impl Parameter {
    /// Its field in a request.
    pub(crate) fn field(&self) -> &'static str {
        match self.slot {
            Slot::Thinking(_) => TEMPLATE_VARIABLES,
            _ => self.name,
        }
    }

    /// How its default is shown.
    pub(crate) fn default_text(&self) -> &'static str {
        match self.slot {
            Slot::Thinking(_) => AUTO,
            _ => DEFAULT,
        }
    }
}

impl Parameters {
    /// Gives a parameter the value that a text says, or takes it back by [`DEFAULT`].
    ///
    /// # Errors
    /// In words, with the name, the value and what was expected; nothing is changed then.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let row = TABLE.iter().find(|row| row.name == name).ok_or_else(|| {
            let near = nearest(name, TABLE.iter().map(|row| row.name));
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            format!("there is no parameter {name:?}{near}")
        })?;
        let value = as_it_is_here(name, value);
        let expected = |what: &str| format!("{name} is {what}, not {value:?}");
        let mut changed = self.clone();
        let is_default = value == DEFAULT;
        match row.slot {
            Slot::Number(slot) if is_default => *slot(&mut changed) = None,
            Slot::Whole(slot) if is_default => *slot(&mut changed) = None,
            Slot::Texts(slot) if is_default => slot(&mut changed).clear(),
            Slot::Switch(slot) if is_default => *slot(&mut changed) = false,
            Slot::Thinking(slot) if is_default => *slot(&mut changed) = None,
            Slot::Number(slot) => *slot(&mut changed) = Some(value.parse().map_err(|_| expected("a number"))?),
            Slot::Whole(slot) => {
                *slot(&mut changed) = Some(value.parse().map_err(|_| expected("a whole number of at least 0"))?);
            }
            Slot::Texts(slot) => {
                *slot(&mut changed) = texts(value).ok_or_else(|| expected("a text or a JSON array of texts"))?;
            }
            Slot::Switch(slot) => *slot(&mut changed) = value.parse().map_err(|_| expected("true or false"))?,
            Slot::Thinking(slot) => *slot(&mut changed) = switch(value).ok_or_else(|| expected("on, off or auto"))?,
        }
        changed.sampling().map_err(|error| error.to_string())?;
        *self = changed;
        Ok(())
    }

    /// The value of a parameter as text; `None` where it is at its default, or where there is none of this name.
    pub(crate) fn shown(&self, name: &str) -> Option<String> {
        let row = TABLE.iter().find(|row| row.name == name)?;
        let mut copy = self.clone();
        match row.slot {
            Slot::Number(slot) => slot(&mut copy).map(|value| value.to_string()),
            Slot::Whole(slot) => slot(&mut copy).map(|value| value.to_string()),
            Slot::Texts(slot) => Some(&*slot(&mut copy)).filter(|texts| !texts.is_empty()).map(|texts| {
                // Texts are always JSON.
                serde_json::to_string(texts).unwrap_or_default()
            }),
            Slot::Switch(slot) => Some(*slot(&mut copy)).filter(|is_on| *is_on).map(|is_on| is_on.to_string()),
            Slot::Thinking(slot) => slot(&mut copy).map(|is_on| if is_on { "on" } else { "off" }.to_owned()),
        }
    }

    /// The value of a parameter as text, its default too.
    pub(crate) fn text_of(&self, row: &Parameter) -> String {
        self.shown(row.name).unwrap_or_else(|| row.default_text().to_owned())
    }

    /// Variables for the chat template.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        self.think.map(|thinks| (ENABLE_THINKING.to_owned(), thinks.into())).into_iter().collect()
    }

    /// What they ask of this program's engine.
    ///
    /// # Errors
    /// When a value has no meaning; the error names the parameter.
    pub(crate) fn sampling(&self) -> Result<SamplingParams, InvalidParam> {
        let plain = SamplingParams::default();
        let number = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
        let whole = |param, value: u64, most: &str| InvalidParam {
            param,
            message: format!("must be at most {most}, not {value}"),
        };
        let top_k = self.top_k.unwrap_or(TOP_K);
        let count = |tokens: u64| usize::try_from(tokens).unwrap_or(usize::MAX);
        let version = match self.mirostat.unwrap_or(0) {
            0 => None,
            1 => Some(MirostatVersion::One),
            2 => Some(MirostatVersion::Two),
            other => return Err(whole("mirostat", other, "2")),
        };
        let mirostat = version.map(|version| {
            let plain = Mirostat::new(version);
            Mirostat { version, tau: number(self.mirostat_tau, plain.tau), eta: number(self.mirostat_eta, plain.eta) }
        });
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(TEMPERATURE) as f32,
            top_k: top_k.try_into().map_err(|_| whole("top_k", top_k, "4294967295"))?,
            top_p: self.top_p.unwrap_or(TOP_P) as f32,
            min_p: self.min_p.unwrap_or(MIN_P) as f32,
            typical_p: number(self.typical_p, plain.typical_p),
            repetition_penalty: number(self.repetition_penalty, plain.repetition_penalty),
            frequency_penalty: number(self.frequency_penalty, plain.frequency_penalty),
            presence_penalty: number(self.presence_penalty, plain.presence_penalty),
            penalty_last_n: self.repeat_last_n.map(count),
            top_n_sigma: number(self.top_n_sigma, plain.top_n_sigma),
            dynamic_temperature: DynamicTemperature {
                range: number(self.dynatemp_range, plain.dynamic_temperature.range),
                exponent: number(self.dynatemp_exponent, plain.dynamic_temperature.exponent),
            },
            xtc: Xtc {
                probability: number(self.xtc_probability, plain.xtc.probability),
                threshold: number(self.xtc_threshold, plain.xtc.threshold),
            },
            min_keep: self.min_keep.map_or(plain.min_keep, count),
            mirostat,
            seed: self.seed,
            // More than memory can hold is as good as no bound.
            max_tokens: self.max_tokens.map(count),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..plain
        };
        params.validate().map(|()| params)
    }
}

/// A switch as a request gives it to the template.
fn as_variables<S: Serializer>(think: &Option<bool>, serializer: S) -> Result<S::Ok, S::Error> {
    Parameters { think: *think, ..Parameters::default() }.variables().serialize(serializer)
}

/// A value that is below 0 where servers write that for all, or for none of it.
fn as_it_is_here<'a>(name: &str, value: &'a str) -> &'a str {
    match name {
        "top_k" if value == "-1" => "0",
        "repeat_last_n" if value == "-1" => DEFAULT,
        "top_n_sigma" if value.parse::<f64>().is_ok_and(|deviations| deviations < 0.0) => "0",
        _ => value,
    }
}

/// On, off, or left to others.
fn switch(value: &str) -> Option<Option<bool>> {
    match value {
        "on" | "true" => Some(Some(true)),
        "off" | "false" => Some(Some(false)),
        AUTO => Some(None),
        _ => None,
    }
}

/// One text as it is, or several as a JSON array; a JSON string is a text whose line ends are written `\n`.
fn texts(value: &str) -> Option<Vec<String>> {
    if value.starts_with('[') {
        return serde_json::from_str(value).ok();
    }
    if value.starts_with('"') {
        return serde_json::from_str(value).ok().map(|text| vec![text]);
    }
    Some(vec![value.to_owned()])
}

/// The name that somebody who typed `word` probably meant, if one is near: a letter off in short ones, two in longer ones.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if word.chars().count() <= 4 { 1 } else { 2 };
    let distances = names.map(|name| (strsim::damerau_levenshtein(word, name), name));
    let prefixed = |name: &str| word.chars().count() >= 3 && name.starts_with(word);
    distances.filter(|(distance, name)| *distance <= most || prefixed(name)).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Result<Parameters, String> {
        let mut parameters = Parameters::default();
        parameters.set(name, value).map(|()| parameters)
    }

    #[test]
    fn every_parameter_can_be_set_shown_and_taken_back() {
        for row in &TABLE {
            let value = match row.slot {
                _ if row.name == "mirostat" => "2",
                Slot::Number(_) => "0.5",
                Slot::Whole(_) => "7",
                Slot::Texts(_) => "[\"a\",\"b\\n\"]",
                Slot::Switch(_) => "true",
                Slot::Thinking(_) => "on",
            };
            let mut parameters = set(row.name, value).unwrap();
            assert_eq!(parameters.shown(row.name).as_deref(), Some(value));
            let json = serde_json::to_value(&parameters).unwrap();
            assert_eq!(
                json.as_object().unwrap().keys().collect::<Vec<_>>(),
                [row.field()],
                "under the name of the API"
            );
            assert_eq!(parameters.text_of(row), value);
            parameters.set(row.name, row.default_text()).unwrap();
            assert_eq!(parameters, Parameters::default());
            parameters.set(row.name, value).unwrap();
            parameters.set(row.name, DEFAULT).unwrap();
            assert_eq!(parameters, Parameters::default());
            assert_eq!(parameters.shown(row.name), None);
        }
    }

    #[test]
    fn a_value_that_cannot_be_is_named_and_changes_nothing() {
        let mut parameters = set("temperature", "0.5").unwrap();
        for (name, value, words) in [
            ("temperature", "warm", "temperature is a number, not \"warm\""),
            ("temperature", "-1", "at least 0, not -1"),
            ("temperature", "NaN", "temperature"),
            ("top_p", "2", "between 0 and 1, not 2"),
            ("top_k", "-3", "whole number"),
            ("top_k", "99999999999", "top_k: must be at most"),
            ("max_tokens", "0", "at least 1"),
            ("seed", "1.5", "whole number"),
            ("stop", "[1]", "JSON array of texts"),
            ("stop", "\"\"", "empty"),
            ("ignore_eos", "maybe", "true or false"),
            ("think", "hard", "think is on, off or auto, not \"hard\""),
            ("temprature", "1", "did you mean temperature?"),
            ("mirostat", "3", "mirostat: must be at most 2, not 3"),
            ("xtc_probability", "2", "between 0 and 1, not 2"),
            ("quantum", "1", "there is no parameter \"quantum\""),
        ] {
            let refused = parameters.set(name, value).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        assert_eq!(Ok(parameters), set("temperature", "0.5"));
    }

    // `/load` refused conversations whose files have what the server documents.
    #[test]
    fn values_below_0_mean_what_they_do_to_a_server() {
        for (name, value, shown) in [
            ("top_k", "-1", Some("0")),
            ("repeat_last_n", "-1", None),
            ("top_n_sigma", "-1", Some("0")),
            ("top_n_sigma", "-1.0", Some("0")),
        ] {
            assert_eq!(set(name, value).unwrap().shown(name).as_deref(), shown, "{name} {value}");
        }
        for (name, value) in [("repeat_last_n", "-2"), ("min_keep", "-1"), ("min_p", "-1")] {
            assert!(set(name, value).is_err(), "{name} {value}");
        }
    }

    #[test]
    fn whether_to_think_is_a_variable_of_the_template() {
        for (value, variables) in [
            ("on", serde_json::json!({ "enable_thinking": true })),
            ("off", serde_json::json!({ "enable_thinking": false })),
            ("auto", serde_json::json!({})),
        ] {
            let parameters = set("think", value).unwrap();
            assert_eq!(Value::Object(parameters.variables()), variables);
            let json = serde_json::to_value(&parameters).unwrap();
            assert_eq!(json.get(TEMPLATE_VARIABLES).cloned().unwrap_or(serde_json::json!({})), variables);
        }
    }

    #[test]
    fn stop_texts_are_written_as_they_are_or_as_json() {
        assert_eq!(set("stop", "the end").unwrap().stop, ["the end"]);
        assert_eq!(set("stop", r#""a\nb""#).unwrap().stop, ["a\nb"]);
    }

    #[test]
    fn defaults_are_those_of_the_command_line() {
        let params = Parameters::default().sampling().unwrap();
        assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (0.8, 40, 0.95, 0.05));
        let mut said = Parameters::default();
        for (name, value) in sampler() {
            said.set(name, &value.to_string()).unwrap();
        }
        assert_eq!(said.sampling().unwrap(), params, "said or not");
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let near = |word| nearest(word, ["/system", "/set", "/save", "/stats"].into_iter());
        assert_eq!(near("/sytsem"), Some("/system"));
        assert_eq!(near("/sett"), Some("/set"));
        assert_eq!(near("/sys"), Some("/system"));
        assert_eq!(near("/what"), None);
        assert_eq!(near("/etc"), None);
    }
}
