//! Candle as a peer, its own network or its tensors, in a process of its own (`bench/candle_baseline`).
//!
//! A process apart, because candle chooses its instruction set when it is compiled: inside a program that runs on every
//! machine it would compute without AVX, and the comparison would flatter us. Built apart it is built for this machine.
//! The driver prepares its data once and answers a case per line, so that samples alternate with ours.

use crate::attention::Shape;
use crate::{Case, Error};
use serde::Deserialize;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The driver, waiting for cases. Dropping it ends the process.
#[derive(Debug)]
pub struct Candle {
    child: Child,
    cases: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What the driver says of one sample.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Answer {
    /// The case.
    pub case: String,
    /// Of a network tokens per second, of attention seconds per call.
    pub median: f64,
    /// Bytes that a call of attention needs beside its operands.
    #[serde(default)]
    pub working_bytes: u64,
    /// What attention's keys and values are held in, numbers of float16 in any case.
    #[serde(default)]
    pub kv: String,
}

impl Candle {
    /// Starts `driver` on a model.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(driver: &Path, model: &Path, threads: usize) -> Result<Candle, Error> {
        Self::spawn(driver, threads, [model.as_os_str(), threads.to_string().as_ref()])
    }

    /// Starts `driver` for attention over so many bytes of keys and values in float16.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_attention(driver: &Path, threads: usize, ring_bytes: usize) -> Result<Candle, Error> {
        let [threads_text, ring_bytes] = [threads, ring_bytes].map(|number| number.to_string());
        Self::spawn(driver, threads, ["attention".as_ref(), threads_text.as_ref(), ring_bytes.as_ref()])
    }

    fn spawn<const N: usize>(driver: &Path, threads: usize, arguments: [&OsStr; N]) -> Result<Candle, Error> {
        let failed = |reason: &str| Error::Peer(format!("cannot start {}: {reason}", driver.display()));
        let mut command = Command::new(driver);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Candle asks the variable, and not its pool, how many threads share a product.
        command.env("RAYON_NUM_THREADS", threads.to_string());
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let answers = child.stdout.take().ok_or_else(|| failed("it has no stdout"))?;
        let cases = child.stdin.take();
        Ok(Candle { child, cases, answers: BufReader::new(answers) })
    }

    /// Whether its network can do what the case asks for: it has one sequence, and takes prompts from the beginning only.
    pub fn can(case: Case) -> bool {
        match case {
            Case::Prompt { depth, .. } => depth == 0,
            Case::Generate { .. } => true,
            Case::Batch { .. } => false,
        }
    }

    /// One sample of the network, tokens per second.
    ///
    /// # Errors
    /// When the driver ends, or answers something else.
    pub fn sample(&mut self, case: Case) -> Result<f64, Error> {
        self.ask(&case.to_string()).map(|answer| answer.median)
    }

    /// One sample of attention.
    ///
    /// # Errors
    /// As [`Candle::sample`].
    pub fn attention(&mut self, shape: Shape) -> Result<Answer, Error> {
        self.ask(&shape.to_string())
    }

    fn ask(&mut self, case: &str) -> Result<Answer, Error> {
        let ended = || Error::Peer("the candle driver ended early; what it said stands above".into());
        let cases = self.cases.as_mut().ok_or_else(ended)?;
        writeln!(cases, "{case}").and_then(|()| cases.flush()).map_err(|_| ended())?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(|_| ended())? == 0 {
            return Err(ended());
        }
        match serde_json::from_str(&line) {
            Ok(answer @ Answer { .. }) if answer.case == case => Ok(answer),
            _ => Err(Error::Peer(format!("the candle driver answered {line:?} to {case}"))),
        }
    }
}

impl Drop for Candle {
    fn drop(&mut self) {
        // At the end of its input the driver ends by itself; killing is for one that is in the middle of something.
        drop(self.cases.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_missing_or_ends_is_told() {
        let error = Candle::start(Path::new("/nonexistent/driver"), Path::new("m"), 1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/driver"), "{error}");
        let case = Case::Generate { tokens: 1, depth: 0 };
        let error = Candle::start(Path::new("/bin/true"), Path::new("m"), 1).unwrap().sample(case).unwrap_err();
        assert!(error.to_string().contains("ended early"), "{error}");
        let error = Candle::start(Path::new("/bin/echo"), Path::new("m"), 1).unwrap().sample(case).unwrap_err();
        assert!(matches!(error, Error::Peer(_)), "{error}");
    }
}
