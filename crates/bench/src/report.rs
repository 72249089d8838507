//! A run as one web page without a reference to anything outside it: plots, and the rows in a table.

use crate::plot::Plot;
use crate::{Error, Finished, Record};
use std::fmt::Write as _;

const STYLE: &str = include_str!("report.css");

/// The page; `command` is what was typed.
///
/// # Errors
/// What drawing says.
pub fn html(command: &str, finished: &Finished, plots: &[Plot]) -> Result<String, Error> {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n<style>\n{STYLE}</style>\n<h1>{0}</h1>\n",
        escape(command)
    );
    if let Some(record) = finished.records.first() {
        let Record { machine, isa, commit, .. } = record;
        let facts = [("machine", machine), ("instruction set", isa), ("commit", commit)];
        let mut facts: Vec<(&str, String)> = facts.map(|(name, value)| (name, value.clone())).into();
        if let Some(ceiling) = finished.ceiling {
            facts.push(("read bandwidth", format!("{ceiling:.1} GB/s")));
        }
        page.push_str("<dl>");
        for (name, value) in facts {
            let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
        }
        page.push_str("</dl>\n");
    }
    if !finished.void.is_empty() {
        let _ = writeln!(page, "<p class=\"void\">{}</p>", escape(&finished.void_reason()));
    }
    page.push_str("<div class=\"plots\">\n");
    for plot in plots.iter().filter(|plot| plot.has_points()) {
        figure(&mut page, plot)?;
    }
    page.push_str("</div>\n");
    table(&mut page, &finished.records);
    Ok(page)
}

fn figure(page: &mut String, plot: &Plot) -> Result<(), Error> {
    let _ = writeln!(page, "<figure><figcaption>{}</figcaption>\n{}", escape(&plot.title), plot.svg()?);
    page.push_str("<ul>");
    for (index, series) in plot.shown().iter().enumerate() {
        let _ = write!(page, "<li style=\"--c:var(--s{index})\">{}</li>", escape(&series.name));
    }
    if let Some((name, level)) = &plot.line {
        let _ = write!(page, "<li class=\"level\">{}, {level:.1}</li>", escape(name));
    }
    page.push_str("</ul></figure>\n");
    Ok(())
}

fn table(page: &mut String, records: &[Record]) {
    page.push_str("<div class=\"rows\"><table><thead><tr>");
    for (index, name) in Record::COLUMNS.iter().enumerate() {
        let _ = write!(page, "<th{}>{name}</th>", if index < 2 { " class=\"text\"" } else { "" });
    }
    page.push_str("</tr></thead><tbody>\n");
    for record in records {
        page.push_str(if record.void { "<tr class=\"void\">" } else { "<tr>" });
        for (index, cell) in record.cells().iter().enumerate() {
            let _ = write!(page, "<td{}>{}</td>", if index < 2 { " class=\"text\"" } else { "" }, escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</html>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Summary, params};

    #[test]
    fn a_page_holds_everything_and_no_markup_of_strangers() {
        let record = Record {
            bench: "model",
            case: "<b>tg64</b>".into(),
            params: params([]),
            median: 12.5,
            p10: 12.0,
            p90: 13.0,
            unit: "tokens/s",
            bytes: None,
            gbps: Some(20.0),
            share: Some(0.8),
            commit: "abc".into(),
            machine: "A & B".into(),
            isa: "avx2".into(),
            threads: 2,
            void: false,
        };
        assert_eq!(Summary::of(&[1.0]).median, 1.0);
        let finished = Finished { records: vec![record], ceiling: Some(25.0), void: vec!["x".into()] };
        let page = html("taper bench model", &finished, &[]).unwrap();
        assert!(
            page.contains("&lt;b&gt;tg64&lt;/b&gt;") && page.contains("A &amp; B") && !page.contains("<b>"),
            "{page}"
        );
        assert!(page.contains("80 %") && page.contains("25.0 GB/s") && page.contains("void"), "{page}");
        assert!(!page.contains("http") && !page.contains("src="), "self-contained");
    }
}
