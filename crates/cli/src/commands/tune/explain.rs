//! `taper tune --explain`: every cell with the cost of each alternative, and the price of the class.

use crate::commands::list;
use crate::output;
use anyhow::Result;
use comfy_table::CellAlignment;
use taper_bench::counted;
use taper_bench::tune::price::{Price, prices, summed};
use taper_bench::tune::{Cell, shape_name};
use taper_kernels::cpu::gemm::Activations;

pub(super) fn run(cells: &[Cell], class: Activations) -> Result<()> {
    let prices = prices(cells, class);
    let mut table = list::table(&["shape", "rows", "choice", "us", "any class, us", "price", "alternatives, us"]);
    for column in [1, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for cell in cells.iter().filter(|cell| cell.activations == class) {
        let choice = cell.choice();
        let mut others: Vec<_> = cell.costs.iter().filter(|(other, _)| *other != choice).collect();
        others.sort_by(|a, b| a.1.total_cmp(&b.1));
        let others: Vec<String> =
            others.iter().map(|(other, cost)| format!("{} {:.1}", other.name(), cost * 1e6)).collect();
        let price = prices.iter().find(|price| (price.shape, price.rows) == (cell.shape, cell.rows));
        table.add_row([
            shape_name(cell.shape),
            cell.rows.to_string(),
            choice.name(),
            format!("{:.1}", cell.cost(choice).unwrap_or(f64::NAN) * 1e6),
            price.map_or_else(String::new, |price| format!("{:.1}", price.of_any * 1e6)),
            price.map_or_else(String::new, |price| format!("{:.2}", price.factor())),
            others.join(", "),
        ]);
    }
    output::line(&table.trim_fmt())?;
    output::line(&format!(
        "choices: instruction set, largest tile of rows x panels of 16 outputs; all of class {}, so all give the same bits",
        class.class()
    ))?;
    output::line(&price_of_the_class(&prices, class))
}

/// What was compared, and what came of it.
fn price_of_the_class(prices: &[Price], class: Activations) -> String {
    let costs_most = prices.iter().max_by(|a, b| a.factor().total_cmp(&b.factor()));
    let (Some(sum), Some(most)) = (summed(prices), costs_most) else {
        return "no price of the class: it is only of quantized weights, of which none were measured".into();
    };
    let [full, mixed] = Activations::ALL;
    format!(
        "price of class {}: its fastest implementations take {sum:.2} times as long as the fastest of any class, summed over {} \
         with quantized weights; at most {:.2} times, {} with {} rows\n\
         classes: full ({}), activations of 15 bits as two int8 digits; mixed ({}), where no block has outliers: 8 bits, one \
         digit, the least that it can take. Other weights have one class",
        class.class(),
        counted(prices.len(), "cell"),
        most.factor(),
        shape_name(most.shape),
        most.rows,
        full.class(),
        mixed.class()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_bench::tune::parse_shape;

    #[test]
    fn the_price_is_a_sum_and_the_worst_cell_and_says_what_was_compared() {
        let shape = parse_shape("Q4_0 64x96").unwrap();
        let price = |rows, of_class, of_any| Price { shape, rows, of_class, of_any };
        let text = price_of_the_class(&[price(1, 3.0, 2.0), price(8, 9.0, 4.0)], Activations::Full);
        assert!(text.contains("int15x32-bf16x32: its fastest implementations take 2.00 times"), "{text}");
        assert!(text.contains("2 cells") && text.contains("at most 2.25 times, Q4_0 64x96 with 8 rows"), "{text}");
        assert!(text.contains("int8-15x32-bf16x32") && text.contains("no block has outliers"), "{text}");
        assert!(price_of_the_class(&[], Activations::Full).starts_with("no price"));
    }
}
