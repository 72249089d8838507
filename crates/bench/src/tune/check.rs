//! How good tuned choices are, measured anew. In every repeat the choice and all candidates of its class take turns; a
//! candidate's cost is the median over the repeats, and the oracle of a cell is the candidate whose cost is least. Choice and
//! oracle are so judged by the same moments, and neither by a lucky one.

use super::products::{Arm, Products};
use super::{Effort, shape_name};
use crate::{Column, Findings, Measurement, Record, Summary, counted, params, quantile};
use taper_kernels::cpu::gemm::{Activations, Choice, Shape, Tuning};

/// Name of the benchmark.
pub const NAME: &str = "dispatcher";
/// Summed time over that of the oracle that a dispatcher should stay within.
pub const SUM: f64 = 1.05;
/// The same for every single cell.
pub const WORST: f64 = 1.25;

/// The candidates of one shape at one number of rows, and the one that is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedCell {
    /// The matrix.
    pub shape: Shape,
    /// How activations are rounded.
    pub activations: Activations,
    /// Rows.
    pub rows: usize,
    /// Index of the choice.
    pub chosen: usize,
    /// Seconds of one product by each candidate, repeat by repeat, the built-in rule first.
    pub costs: Vec<(Choice, Vec<f64>)>,
}

impl CheckedCell {
    /// Median seconds of a candidate.
    fn cost(&self, candidate: usize) -> f64 {
        quantile(&self.costs[candidate].1, 0.5)
    }

    /// The fastest candidate.
    fn oracle(&self) -> usize {
        (0..self.costs.len()).min_by(|&a, &b| self.cost(a).total_cmp(&self.cost(b))).unwrap_or(0)
    }

    /// Time of a candidate over the oracle's.
    fn over_oracle(&self, candidate: usize) -> f64 {
        self.cost(candidate) / self.cost(self.oracle())
    }

    /// Short and unique.
    fn name(&self) -> String {
        format!("{} M={}", shape_name(self.shape), self.rows)
    }
}

/// Checks what `tuning` chooses for one shape; `progress` is told after each number of rows of each repeat.
pub fn check(
    products: &mut Products<'_>,
    activations: Activations,
    tuning: &Tuning,
    (effort, repeats): (&Effort, usize),
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<CheckedCell> {
    let (shape, isa) = (products.shape(), products.isa());
    let cell = |&rows: &usize| {
        let mut candidates = Choice::candidates(isa, rows);
        let choice = tuning.choice(activations, shape, isa, rows);
        let chosen = candidates.iter().position(|other| other.is_like(choice, rows)).unwrap_or(candidates.len());
        if chosen == candidates.len() {
            candidates.push(choice);
        }
        let costs = candidates.into_iter().map(|choice| (choice, Vec::new())).collect();
        CheckedCell { shape, activations, rows, chosen, costs }
    };
    let mut cells: Vec<CheckedCell> = effort.rows.iter().map(cell).collect();
    for repeat in 0..repeats {
        for cell in &mut cells {
            let arms: Vec<Arm> = cell.costs.iter().map(|&(choice, _)| (activations, choice)).collect();
            let turns = products.race(&arms, cell.rows, effort, Some(cell.chosen));
            for ((_, costs), turns) in cell.costs.iter_mut().zip(turns) {
                costs.push(quantile(&turns, 0.5));
            }
            progress(repeat, cell.rows);
        }
    }
    cells
}

/// The cells together.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Summed time as chosen over that of the oracle.
    pub sum: f64,
    /// The same in each repeat alone, with the same oracle.
    pub repeats: Vec<f64>,
    /// The worst cell and its time over the oracle's.
    pub worst: (String, f64),
    /// Summed time of the built-in rule over that of the oracle, and its worst cell's.
    pub rule: (f64, f64),
    /// Seconds of the oracle, summed.
    pub oracle_seconds: f64,
}

impl Verdict {
    /// Of at least one cell.
    pub fn of(cells: &[CheckedCell]) -> Verdict {
        let sum = |seconds: &dyn Fn(&CheckedCell) -> f64| cells.iter().map(seconds).sum::<f64>();
        let oracle_seconds = sum(&|cell| cell.cost(cell.oracle()));
        let over = |candidate: &dyn Fn(&CheckedCell) -> usize| sum(&|cell| cell.cost(candidate(cell))) / oracle_seconds;
        let num_repeats = cells.iter().map(|cell| cell.costs[0].1.len()).min().unwrap_or(0);
        let in_repeat = |repeat: usize| {
            let seconds =
                |candidate: &dyn Fn(&CheckedCell) -> usize| sum(&|cell| cell.costs[candidate(cell)].1[repeat]);
            seconds(&|cell| cell.chosen) / seconds(&CheckedCell::oracle)
        };
        let worst = cells.iter().map(|cell| (cell.name(), cell.over_oracle(cell.chosen)));
        Verdict {
            sum: over(&|cell| cell.chosen),
            repeats: (0..num_repeats).map(in_repeat).collect(),
            worst: worst.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default(),
            rule: (over(&|_| 0), cells.iter().map(|cell| cell.over_oracle(0)).fold(1.0, f64::max)),
            oracle_seconds,
        }
    }

    /// Lowest and highest of the repeats.
    fn spread(&self) -> (f64, f64) {
        (self.repeats.iter().copied().fold(self.sum, f64::min), self.repeats.iter().copied().fold(self.sum, f64::max))
    }

    /// For a reader.
    fn sentence(&self) -> String {
        let ((low, high), (worst_cell, worst)) = (self.spread(), &self.worst);
        format!(
            "{:.3} of the oracle's time ({low:.3} to {high:.3} in single repeats), worst {worst:.2} at {worst_cell}; by the \
             built-in rule {:.3}, worst {:.2}",
            self.sum, self.rule.0, self.rule.1
        )
    }

    /// The median and percentiles are of single repeats; `sum` is what counts, where a candidate's cost is its median.
    fn row(&self, name: String) -> Measurement {
        Measurement {
            bench: NAME,
            case: name,
            params: params([
                ("sum", self.sum.into()),
                ("repeats", self.repeats.clone().into()),
                ("worst", self.worst.1.into()),
                ("worst_case", self.worst.0.clone().into()),
                ("rule", self.rule.0.into()),
                ("rule_worst", self.rule.1.into()),
                ("oracle_ms", (self.oracle_seconds * 1e3).into()),
            ]),
            summary: Summary::of(&self.repeats),
            unit: "x oracle",
            bytes: None,
            gbps: None,
        }
    }
}

/// A row per cell, and one for all.
pub fn rows(cells: &[CheckedCell]) -> Vec<Measurement> {
    let row = |cell: &CheckedCell| {
        let Shape { weight_type, outputs, inputs } = cell.shape;
        let oracle = cell.oracle();
        Measurement {
            bench: NAME,
            case: cell.name(),
            params: params([
                ("type", format!("{weight_type:?}").into()),
                ("n", outputs.into()),
                ("k", inputs.into()),
                ("m", cell.rows.into()),
                ("class", cell.activations.class().into()),
                ("chosen", cell.costs[cell.chosen].0.name().into()),
                ("oracle", cell.costs[oracle].0.name().into()),
                ("oracle_us", (cell.cost(oracle) * 1e6).into()),
                ("over_oracle", cell.over_oracle(cell.chosen).into()),
                ("rule_over_oracle", cell.over_oracle(0).into()),
                ("candidates", cell.costs.len().into()),
            ]),
            summary: Summary::of(&cell.costs[cell.chosen].1).times(1e6),
            unit: "us",
            bytes: weight_type.row_bytes(inputs).map(|bytes| (bytes * outputs) as f64),
            gbps: None,
        }
    };
    let mut rows: Vec<Measurement> = cells.iter().map(row).collect();
    rows.push(Verdict::of(cells).row("all cells".into()));
    rows
}

/// Columns of the table, a sentence per shape, and whether the aims hold.
pub fn findings(cells: &[CheckedCell]) -> Findings {
    fn text(record: &Record, name: &str) -> Option<String> {
        record.params.get(name)?.as_str().map(str::to_owned)
    }
    const COLUMNS: [Column; 3] = [
        Column { title: "CHOSEN", cell: |record| text(record, "chosen") },
        Column { title: "ORACLE", cell: |record| text(record, "oracle") },
        Column {
            title: "X ORACLE",
            cell: |record| record.params.get("over_oracle")?.as_f64().map(|over| format!("{over:.3}")),
        },
    ];
    let mut notes: Vec<String> = cells
        .chunk_by(|a, b| a.shape == b.shape)
        .map(|cells| format!("{}: {}", shape_name(cells[0].shape), Verdict::of(cells).sentence()))
        .collect();
    let verdict = Verdict::of(cells);
    let within = |value: f64, limit: f64| if value <= limit { "within" } else { "NOT within" };
    notes.push(format!("all {}: {}", counted(cells.len(), "cell"), verdict.sentence()));
    notes.push(format!(
        "the sum is {} {SUM} of the oracle (the fastest candidate of each cell, by the median of {}), the worst \
         cell is {} {WORST}",
        within(verdict.sum, SUM),
        counted(verdict.repeats.len(), "repeat"),
        within(verdict.worst.1, WORST)
    ));
    Findings { columns: COLUMNS.to_vec(), plots: Vec::new(), notes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::WeightType;
    use taper_kernels::cpu::isa::Isa;
    use taper_kernels::cpu::pool::Pool;

    const SHAPE: Shape = Shape { weight_type: WeightType::Q4_0, outputs: 48, inputs: 64 };

    fn cell(rows: usize, chosen: usize, costs: [[f64; 3]; 2]) -> CheckedCell {
        let costs = Choice::candidates(Isa::best(), 64).into_iter().zip(costs.map(Vec::from)).collect();
        CheckedCell { shape: SHAPE, activations: Activations::Full, rows, chosen, costs }
    }

    fn cells() -> [CheckedCell; 2] {
        // The lucky 1.0 of the second candidate does not make it the oracle of the first cell.
        [cell(1, 1, [[4.0, 4.0, 4.0], [1.0, 5.0, 5.0]]), cell(2, 1, [[9.0, 9.0, 3.0], [8.0, 8.0, 8.0]])]
    }

    #[test]
    fn choice_and_oracle_are_medians_of_the_same_repeats() {
        let verdict = Verdict::of(&cells());
        assert_eq!(verdict.sum, 13.0 / 12.0);
        assert_eq!(verdict.repeats, [9.0 / 12.0, 13.0 / 12.0, 13.0 / 12.0]);
        assert_eq!(verdict.worst, ("Q4_0 48x64 M=1".to_string(), 1.25));
        assert_eq!(verdict.rule, (13.0 / 12.0, 9.0 / 8.0));
        assert_eq!(verdict.oracle_seconds, 12.0);
    }

    #[test]
    fn words_say_whether_the_aims_hold() {
        let notes = findings(&cells()).notes;
        assert_eq!(notes.len(), 3, "one for the shape, two for all");
        assert!(notes[1].starts_with("all 2 cells: 1.083 of the oracle's time (0.750 to 1.083"), "{notes:?}");
        assert!(notes[2].contains("the sum is NOT within 1.05") && notes[2].contains("is within 1.25"), "{notes:?}");
    }

    #[test]
    fn every_cell_has_a_row_and_all_have_one() {
        let rows = rows(&cells());
        assert_eq!(
            rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(),
            ["Q4_0 48x64 M=1", "Q4_0 48x64 M=2", "all cells"]
        );
        assert_eq!((rows[0].summary.median, rows[0].bytes), (5e6, Some(48.0 * 36.0)));
        let Summary { median, p10, p90 } = rows[2].summary;
        assert!(p10 > 0.75 && p10 < median && median == 13.0 / 12.0 && p90 == median, "{:?}", rows[2].summary);
        assert_eq!(rows[2].params["sum"], 13.0 / 12.0);
        assert_eq!((&rows[0].params["over_oracle"], &rows[2].params["worst"]), (&1.25.into(), &1.25.into()));
    }

    #[test]
    fn what_the_tuning_chooses_is_measured_beside_every_candidate() {
        let pool = Pool::new(1);
        let isa = Isa::best();
        let mut tuning = Tuning::default();
        // No candidate: other panels than any.
        let chosen = Choice { tile_panels: 3, ..Choice::builtin(isa, 9) };
        tuning.set(Activations::Mixed, SHAPE, 9, chosen);
        let mut products = Products::new(isa, &pool, SHAPE, 9).unwrap();
        let effort = Effort { rows: vec![1, 9], turns: 1, turn_seconds: 0.0 };
        let mut told = 0;
        let cells = check(&mut products, Activations::Mixed, &tuning, (&effort, 3), &mut |_, _| told += 1);
        assert_eq!((cells.len(), cells[0].chosen, told), (2, 0, 6));
        assert_eq!(cells[1].costs[cells[1].chosen].0, chosen);
        assert_eq!(cells[1].costs.len(), Choice::candidates(isa, 9).len() + 1);
        assert!(cells.iter().flat_map(|cell| &cell.costs).all(|(_, repeats)| repeats.len() == 3));
    }
}
