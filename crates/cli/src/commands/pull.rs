//! `taper pull`: fetches a model; the last line of stdout is the path of its file.

use crate::args::PullArgs;
use crate::{load, output, progress::Bars};
use anyhow::Result;

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let model = load::resolve(&args.name, &Bars::new())?;
    output::line(&model.path.display().to_string())?;
    Ok(())
}
