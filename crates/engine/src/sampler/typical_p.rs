//! typical_p, locally typical sampling (Meister, Pimentel, Wiher and Cotterell, 2023): keep the tokens whose information
//! content `-ln p` lies nearest to the entropy of the distribution, as few as have the mass p.
//!
//! With weights `w` of total `W`, `p = w / W` and the entropy is `ln W - sum(w ln w) / W`, so the distance of a token is
//! `|sum(w ln w) / W - ln w|`: how far its `ln w` is from the weighted mean of all.

use super::candidates::{Candidate, mass};
use super::top_p;

/// Keeps the typical candidates, at least `min_keep`, the most typical first, and among equals the heavier and then the lower id.
/// `ln_weight` gives the logarithm of a candidate's weight; `scratch` is working memory.
pub(super) fn keep(
    items: &mut Vec<Candidate>,
    p: f32,
    ln_weight: impl Fn(&Candidate) -> f32,
    min_keep: usize,
    scratch: &mut Vec<(f32, Candidate)>,
) {
    let total = mass(items);
    let weighted = |item: &Candidate| f64::from(item.weight) * f64::from(ln_weight(item));
    let mean = items.iter().map(weighted).sum::<f64>() / total;
    // Tokens of at least top_p's floor have the mass p by themselves. They, and the heaviest, lie no farther from the mean
    // than the lighter of the floor and its mirror image of the heaviest (weight 1, so `mean + mean`): what is lighter still
    // lies farther and is never needed. Half of the bound keeps clear of rounding.
    let mirror = 0.5 * (2.0 * mean).exp() as f32;
    let floor = if min_keep > 1 { 0.0 } else { top_p::floor(p, total, items.len()).min(mirror) };
    scratch.clear();
    let near = items.iter().filter(|item| item.weight >= floor);
    scratch.extend(near.map(|item| ((mean - f64::from(ln_weight(item))).abs() as f32, *item)));
    let order = |a: &(f32, Candidate), b: &(f32, Candidate)| a.0.total_cmp(&b.0).then_with(|| a.1.rank(&b.1));
    top_p::keep_mass(scratch, (f64::from(p) * total, min_keep), |(_, item)| item.weight, order);
    items.clear();
    items.extend(scratch.iter().map(|&(_, item)| item));
}
