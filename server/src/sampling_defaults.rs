//! What a request gets that does not say how tokens are chosen: the first of the server's settings, the suggestion of the
//! model's file and the protocol's own default that says something. What none of them says is [`SamplingParams`]' default.

use serde_json::{Map, Value, json};
use taper_engine::SamplingParams;

/// Values for requests that give none, as far as somebody says so. They are to be ones that a request may give: a request that is
/// refused for them is told that its own field is wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 is all.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub top_p: Option<f32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// 0 to 1.
    pub typical_p: Option<f32>,
    /// 0.01 to 100; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// -2 to 2; 0 is off.
    pub presence_penalty: Option<f32>,
    /// -2 to 2; 0 is off.
    pub frequency_penalty: Option<f32>,
    /// From 1.
    pub max_tokens: Option<usize>,
}

/// A default that somebody set.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingDefault {
    /// The parameter's name in the API.
    pub name: &'static str,
    /// As a request would give it.
    pub value: Value,
    /// `setting` of the server, or `model` for its file.
    pub from: &'static str,
}

impl SamplingDefaults {
    /// Nobody says anything.
    pub const NONE: SamplingDefaults = SamplingDefaults {
        temperature: None,
        top_k: None,
        top_p: None,
        min_p: None,
        typical_p: None,
        repetition_penalty: None,
        presence_penalty: None,
        frequency_penalty: None,
        max_tokens: None,
    };

    /// These, and those of `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            typical_p: self.typical_p.or(other.typical_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            max_tokens: self.max_tokens.or(other.max_tokens),
        }
    }

    /// Each by its name in the API, with its value as a request would give it.
    pub fn fields(&self) -> [(&'static str, Option<Value>); 9] {
        let number = |number: Option<f32>| number.map(|number| json!(as_written(number)));
        [
            ("temperature", number(self.temperature)),
            ("top_k", self.top_k.map(Value::from)),
            ("top_p", number(self.top_p)),
            ("min_p", number(self.min_p)),
            ("typical_p", number(self.typical_p)),
            ("repetition_penalty", number(self.repetition_penalty)),
            ("presence_penalty", number(self.presence_penalty)),
            ("frequency_penalty", number(self.frequency_penalty)),
            ("max_tokens", self.max_tokens.map(Value::from)),
        ]
    }

    /// What a request asks for that gives none of them.
    pub(crate) fn sampling(&self) -> SamplingParams {
        let plain = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_k: self.top_k.unwrap_or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
            min_p: self.min_p.unwrap_or(plain.min_p),
            typical_p: self.typical_p.unwrap_or(plain.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(plain.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(plain.frequency_penalty),
            max_tokens: self.max_tokens,
            ..plain
        }
    }

    /// Those that hold before any protocol's own, where `self` are the server's settings and `suggested` is what the model's file
    /// suggests.
    pub fn in_force(&self, suggested: &SamplingDefaults) -> Vec<SamplingDefault> {
        let ours = self.fields().into_iter().zip(suggested.fields());
        let first = ours.filter_map(|((name, set), (_, suggested))| {
            let set = set.map(|value| (value, "setting"));
            let (value, from) = set.or_else(|| suggested.map(|value| (value, "model")))?;
            Some(SamplingDefault { name, value, from })
        });
        first.collect()
    }
}

/// [`SamplingDefaults::in_force`] by name, as the endpoints tell it.
pub(crate) fn told(settings: &SamplingDefaults, suggested: &SamplingDefaults) -> Map<String, Value> {
    let told = |SamplingDefault { name, value, from }| (name.to_owned(), json!({ "value": value, "from": from }));
    settings.in_force(suggested).into_iter().map(told).collect()
}

/// A number as it was written: 0.7 is another number in 64 bits.
pub(crate) fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: SamplingDefaults = SamplingDefaults {
        temperature: Some(0.7),
        top_k: Some(20),
        top_p: Some(0.9),
        min_p: Some(0.1),
        typical_p: Some(0.8),
        repetition_penalty: Some(1.1),
        presence_penalty: Some(-0.5),
        frequency_penalty: Some(0.25),
        max_tokens: Some(100),
    };

    #[test]
    fn the_first_who_says_something_counts_field_by_field() {
        assert_eq!(SamplingDefaults::NONE, SamplingDefaults::default());
        assert_eq!(ALL.or(SamplingDefaults::NONE), ALL);
        assert_eq!(SamplingDefaults::NONE.or(ALL), ALL);
        let own = SamplingDefaults { top_k: Some(5), temperature: Some(0.0), ..SamplingDefaults::NONE };
        assert_eq!(own.or(ALL), SamplingDefaults { top_k: Some(5), temperature: Some(0.0), ..ALL });
    }

    #[test]
    fn what_nobody_says_is_the_engines() {
        assert_eq!(SamplingDefaults::NONE.sampling(), SamplingParams::default());
        assert_eq!(ALL.sampling().validate(), Ok(()));
        // Each has a place of its own, and a value that is not the engine's.
        let (all, plain) = (ALL.sampling(), SamplingParams::default());
        let values = |p: &SamplingParams| {
            [
                p.temperature,
                p.top_p,
                p.min_p,
                p.typical_p,
                p.repetition_penalty,
                p.presence_penalty,
                p.frequency_penalty,
            ]
        };
        assert_eq!(values(&all), [0.7, 0.9, 0.1, 0.8, 1.1, -0.5, 0.25]);
        assert!(values(&all).iter().zip(values(&plain)).all(|(value, plain)| *value != plain));
        assert_eq!((all.top_k, all.max_tokens), (20, Some(100)));
    }

    #[test]
    fn every_default_is_told_with_where_it_is_from() {
        let settings = SamplingDefaults { temperature: Some(0.6), max_tokens: Some(7), ..SamplingDefaults::NONE };
        let told = Value::Object(told(&settings, &ALL));
        assert_eq!(told["temperature"], json!({ "value": 0.6, "from": "setting" }));
        assert_eq!(told["max_tokens"], json!({ "value": 7, "from": "setting" }));
        assert_eq!(told["top_k"], json!({ "value": 20, "from": "model" }));
        assert_eq!(told["repetition_penalty"], json!({ "value": 1.1, "from": "model" }), "as it was written");
        assert_eq!(told.as_object().map(Map::len), Some(ALL.fields().len()));
        assert_eq!(SamplingDefaults::NONE.in_force(&SamplingDefaults::NONE), []);
    }
}
