"""The page's theme: colours, corners and fonts. Fonts are the system's; nothing is loaded from another host."""

from typing import Any

import gradio as gr


def ragstone_theme() -> Any:
    """Warm greys with one accent; light and dark follow the system. Text meets WCAG AA against its ground in both."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.stone,
        radius_size=gr.themes.sizes.radius_lg,
        # Gradio's defaults are fetched from a font server. The system's fonts are named in style.css, as `system-ui`
        # and its like are keywords, which Gradio would put in quotes.
        font=[gr.themes.Font("sans-serif")],
        font_mono=[gr.themes.Font("monospace")],
    ).set(
        body_background_fill="#faf9f7",
        body_background_fill_dark="#171412",
        body_text_color="*neutral_900",
        body_text_color_dark="*neutral_100",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
        button_secondary_background_fill="white",
        button_secondary_background_fill_hover="*neutral_100",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_border_color="*neutral_300",
        block_border_width="1px",
        input_background_fill="white",
        input_background_fill_dark="*neutral_800",
    )
