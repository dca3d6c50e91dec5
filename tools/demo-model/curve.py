"""The loss curve as a picture (SVG)."""

import math

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 380, 60, 24, 16, 48


def svg(train, held_out):
    """Loss over steps, both axes logarithmic. `train` and `held_out` are rows with `step` and `loss`."""
    rows = train + held_out
    low, high = min(row["loss"] for row in rows) * 0.95, max(row["loss"] for row in rows) * 1.05
    first, last = min(row["step"] for row in rows), max(max(row["step"] for row in rows),
                                                        min(row["step"] for row in rows) + 1)

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(step / first) / math.log(last / first)

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(high / loss) / math.log(high / low)

    def line(rows, color, width):
        points = " ".join(f"{x(row['step']):.1f},{y(row['loss']):.1f}" for row in rows)
        return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{points}"/>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8):
        if low <= loss <= high:
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
                       f'stroke="#dddddd"/>'
                       f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for power in range(0, 7):
        for step in (10**power, 2 * 10**power, 5 * 10**power):
            if first <= step <= last:
                out.append(f'<line y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="{x(step):.1f}" x2="{x(step):.1f}" '
                           f'stroke="#eeeeee"/>'
                           f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                           f'text-anchor="middle">{step}</text>')
    out += [line(train, "#3366cc", 1.5), line(held_out, "#cc5500", 2)]
    out += [f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>',
            f'<text x="{WIDTH - 180}" y="{TOP + 16}" fill="#3366cc">loss in training</text>',
            f'<text x="{WIDTH - 180}" y="{TOP + 34}" fill="#cc5500">loss on held-out stories</text>',
            "</svg>"]
    return "\n".join(out) + "\n"
