//! A run as one web page without a reference to anything outside it: plots, and the rows in a table.

use crate::plot::{COLORS, Plot};
use crate::record::figure as digits;
use crate::{Error, Findings, Finished, Record};
use std::fmt::Write as _;

const STYLE: &str = include_str!("report.css");

/// What stands on a page.
pub(crate) struct Page<'a> {
    /// What was typed.
    pub(crate) command: &'a str,
    /// What the rows have in common, by name.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// What a reader must know before believing it.
    pub(crate) warnings: Vec<String>,
    /// Sentences.
    pub(crate) notes: &'a [String],
    /// Pictures; those without points are left out.
    pub(crate) plots: &'a [Plot],
    /// Heads of the table.
    pub(crate) titles: Vec<&'static str>,
    /// How many of the leading columns are names and not figures.
    pub(crate) num_names: usize,
    /// The cells of each row, and whether it is void.
    pub(crate) rows: Vec<(Vec<String>, bool)>,
}

/// The page; `command` is what was typed.
///
/// # Errors
/// What drawing says.
pub fn html(command: &str, finished: &Finished, findings: &Findings) -> Result<String, Error> {
    let mut facts = Vec::new();
    if let Some(Record { machine, isa, commit, .. }) = finished.records.first() {
        facts.extend([("machine", machine), ("instruction set", isa), ("commit", commit)].map(|(n, v)| (n, v.clone())));
        if let Some(ceiling) = finished.ceiling {
            facts.push(("read bandwidth", format!("{ceiling:.1} GB/s")));
        }
    }
    let page = Page {
        command,
        facts,
        warnings: finished.warnings(),
        notes: &findings.notes,
        plots: &findings.plots,
        titles: findings.titles(),
        num_names: 2,
        rows: finished.records.iter().map(|record| (findings.cells(record), record.void)).collect(),
    };
    page.html()
}

impl Page<'_> {
    /// The page as text.
    ///
    /// # Errors
    /// What drawing says.
    pub(crate) fn html(&self) -> Result<String, Error> {
        let mut page = String::new();
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n<style>\n{STYLE}</style>\n<h1>{0}</h1>\n",
            escape(self.command)
        );
        if !self.facts.is_empty() {
            page.push_str("<dl>");
            for (name, value) in &self.facts {
                let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
            }
            page.push_str("</dl>\n");
        }
        for warning in &self.warnings {
            let _ = writeln!(page, "<p class=\"void\">{}</p>", escape(warning));
        }
        for note in self.notes {
            let _ = writeln!(page, "<p>{}</p>", escape(note));
        }
        for plot in self.plots.iter().filter(|plot| plot.has_points()) {
            figure(&mut page, plot)?;
        }
        page.push_str("<h2>All rows</h2>\n");
        self.table(&mut page);
        Ok(page)
    }

    fn table(&self, page: &mut String) {
        let class = |index| if index < self.num_names { " class=\"text\"" } else { "" };
        page.push_str("<div class=\"rows\"><table><thead><tr>");
        for (index, name) in self.titles.iter().enumerate() {
            let _ = write!(page, "<th{}>{name}</th>", class(index));
        }
        page.push_str("</tr></thead><tbody>\n");
        for (cells, is_void) in &self.rows {
            page.push_str(if *is_void { "<tr class=\"void\">" } else { "<tr>" });
            for (index, cell) in cells.iter().enumerate() {
                let _ = write!(page, "<td{}>{}</td>", class(index), escape(cell));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table></div>\n</html>\n");
    }
}

/// A plot, and beside it its figures: a line per series, a column per x. The table is the legend.
fn figure(page: &mut String, plot: &Plot) -> Result<(), Error> {
    let xs = plot.xs();
    // Of a single x the figures say all there is to see.
    let svg = if xs.len() > 1 { plot.svg()? } else { String::new() };
    let _ = write!(page, "<figure><figcaption>{}, {}</figcaption>\n{svg}", escape(&plot.title), escape(&plot.y));
    let _ = write!(page, "<div class=\"rows\"><table><thead><tr><th class=\"text\">{}</th>", escape(&plot.x));
    for x in &xs {
        let _ = write!(page, "<th>{x}</th>");
    }
    page.push_str("</tr></thead><tbody>\n");
    for (index, series) in plot.shown().iter().enumerate() {
        let _ = write!(
            page,
            "<tr><td class=\"text key\" style=\"--c:var(--s{})\">{}</td>",
            index % COLORS,
            escape(&series.name)
        );
        for x in &xs {
            let y = series.points.iter().find(|point| point.0 == *x).map_or_else(String::new, |point| digits(point.1));
            let _ = write!(page, "<td>{y}</td>");
        }
        page.push_str("</tr>\n");
    }
    if let Some((name, level)) = &plot.line {
        let _ = writeln!(
            page,
            "<tr><td class=\"text level\">{}</td><td colspan=\"{}\" class=\"text\">{}</td></tr>",
            escape(name),
            xs.len(),
            digits(*level)
        );
    }
    page.push_str("</tbody></table></div></figure>\n");
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;
    use crate::{Column, params};

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
        let series = Series { name: "a".into(), points: vec![(1.0, 20.0), (8.0, 10.0)] };
        let line = Some(("read bandwidth".into(), 25.0));
        let plot = Plot { title: "t".into(), x: "rows".into(), y: "GB/s".into(), series: vec![series], line };
        let finished =
            Finished { records: vec![record], ceiling: Some(25.0), before_and_after: None, void: vec!["x".into()] };
        let own = Column { title: "OWN", cell: |row| Some(format!("<{}>", row.threads)) };
        let findings = Findings { columns: vec![own], plots: vec![plot], notes: vec!["1 < 2".into()] };
        let page = html("taper bench model", &finished, &findings).unwrap();
        assert!(
            page.contains("&lt;b&gt;tg64&lt;/b&gt;") && page.contains("A &amp; B") && !page.contains("<b>"),
            "{page}"
        );
        assert!(page.contains("<th>OWN</th>") && page.contains("<td>&lt;2&gt;</td>"), "{page}");
        assert!(page.contains("<p>1 &lt; 2</p>"), "{page}");
        assert!(page.contains("80 %") && page.contains("25.0 GB/s") && page.contains("void"), "{page}");
        assert!(page.contains("<th>8</th>") && page.contains(">a</td><td>20.00</td><td>10.00</td>"), "{page}");
        assert!(!page.contains("http") && !page.contains("src="), "self-contained");
    }
}
