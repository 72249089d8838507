//! Line plots as SVG. Values of x stand at equal distances, in order, whatever lies between them: sizes double, so that is a
//! logarithmic axis where there is one to be had. Colours are left to the page: text is `currentColor`, the grid
//! `var(--grid)`, series `var(--s0)`, `var(--s1)`, ...

use crate::Error;
use plotters::prelude::*;

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What x counts.
    pub x: String,
    /// Unit of y.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
    /// A level to hold them against, with its name.
    pub line: Option<(String, f64)>,
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (640, 340);
/// Colours that the page has; further series begin again.
pub const COLORS: usize = 13;
/// Stand-ins that the page's own colours replace.
const TEXT: RGBColor = RGBColor(0, 0, 1);
const GRID: RGBColor = RGBColor(0, 0, 2);
fn series_color(index: usize) -> RGBColor {
    RGBColor(0, 1, (index % COLORS) as u8)
}

impl Plot {
    /// Whether there is anything to show.
    pub fn has_points(&self) -> bool {
        self.series.iter().any(|series| !series.points.is_empty())
    }

    /// The series that have points, in the order of their colours.
    pub fn shown(&self) -> Vec<&Series> {
        self.series.iter().filter(|series| !series.points.is_empty()).collect()
    }

    /// Every x that has a point, in order.
    pub fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.series.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// The picture; the legend is the page's.
    ///
    /// # Errors
    /// What the plotting library says.
    pub fn svg(&self) -> Result<String, Error> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|reason| Error::Plot { title: self.title.clone(), reason })?;
        svg = svg.replace("#000001", "currentColor").replace("#000002", "var(--grid)");
        // Inside a page the name space goes without saying, and the page says how wide it is.
        svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
        let size = format!("<svg width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1);
        svg = svg.replacen(&size, "<svg", 1);
        // What every element says goes without saying, or is the page's to say; that is a fifth of the picture.
        for (said, short) in
            [(" opacity=\"1\"", ""), (" font-family=\"sans-serif\"", ""), ("10.483870967741936", "10.5")]
        {
            svg = svg.replace(said, short);
        }
        for index in 0..COLORS.min(self.series.len()) {
            svg = svg.replace(&format!("#0001{index:02X}"), &format!("var(--s{index})"));
        }
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), String> {
        let shown = self.shown();
        let xs = self.xs();
        let place = |x: f64| xs.iter().position(|known| *known == x).unwrap_or(0) as i32;
        let ys = shown.iter().flat_map(|series| &series.points).map(|point| point.1);
        let top = ys.chain(self.line.iter().map(|line| line.1)).filter(|y| y.is_finite()).fold(0.0, f64::max);
        let text = ("sans-serif", 13).into_font().color(&TEXT);

        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(38)
            .y_label_area_size(56)
            .build_cartesian_2d(0..(xs.len() as i32 - 1).max(1), 0.0..(top * 1.06).max(f64::MIN_POSITIVE))
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .label_style(text)
            .x_labels(xs.len().max(2))
            .x_label_formatter(&|index| xs.get(*index as usize).map_or_else(String::new, ToString::to_string))
            .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .draw()
            .map_err(|error| error.to_string())?;
        if let Some((_, level)) = self.line {
            let level = [(0, level), ((xs.len() as i32 - 1).max(1), level)];
            let dashes = DashedLineSeries::new(level, 6, 5, TEXT.stroke_width(1));
            chart.draw_series(dashes).map_err(|error| error.to_string())?;
        }
        for (index, series) in shown.iter().enumerate() {
            let color = series_color(index);
            let points: Vec<(i32, f64)> =
                series.points.iter().filter(|point| point.1.is_finite()).map(|(x, y)| (place(*x), *y)).collect();
            let dots = points.iter().map(|point| Circle::new(*point, 3, color.filled()));
            chart.draw_series(dots).map_err(|error| error.to_string())?;
            chart.draw_series(LineSeries::new(points, color.stroke_width(2))).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: Vec<Series>) -> Plot {
        Plot { title: "t".into(), x: "rows".into(), y: "GB/s".into(), series, line: Some(("limit".into(), 30.0)) }
    }

    #[test]
    fn a_picture_leaves_its_colours_to_the_page() {
        let series = |name: &str| Series { name: name.into(), points: vec![(1.0, 20.0), (256.0, 10.0)] };
        let empty = Series { name: "none".into(), points: Vec::new() };
        let plot = plot(vec![empty, series("a"), series("b")]);
        assert_eq!(plot.shown().iter().map(|series| series.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let svg = plot.svg().unwrap();
        assert!(svg.contains("var(--s0)") && svg.contains("var(--s1)") && !svg.contains("var(--s2)"), "{svg}");
        assert!(svg.contains("currentColor") && svg.contains("var(--grid)") && svg.contains("\n256\n"), "{svg}");
        assert!(!svg.contains("#0000") && !svg.contains("#0001"), "{svg}");
        assert!(svg.starts_with("<svg viewBox=\"0 0 640 340\""), "{}", &svg[..80]);
    }

    #[test]
    fn a_single_point_and_none_can_be_drawn() {
        assert!(plot(vec![Series { name: "a".into(), points: vec![(1.0, f64::NAN)] }]).svg().is_ok());
        assert!(!plot(Vec::new()).has_points());
        assert!(plot(Vec::new()).svg().is_ok());
    }
}
