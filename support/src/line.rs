//! A straight line through points, by least squares.

/// Returns the slope of the line with the least sum of squared distances in `y`. The points are at
/// more than one `x`.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    // From the means, not from zero: numbers of a billion would lose digits when squared.
    let together: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let alone: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    together / alone
}
